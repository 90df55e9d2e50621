"""A small language model that wastes memory, and the remedies that it has.

    with_remedies(model)                            as written: all scores and all logits at once
    with_remedies(model, attention=sdpa)            no matrix of scores
    with_remedies(model, loss=in_parts)             the logits of a part of the tokens at a time
    with_remedies(model, checkpointed=True)         each block runs again in backward

All of them have the parameters of `model`.
"""

import copy
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


# --8<-- [start:attention]
def explicit(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention as the formula has it: q, k and v are (rows, heads, length, width)."""
    length = q.shape[-2]
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    wide = torch.promote_types(scores.dtype, torch.float32)  # as autocast has it on a GPU, and on a CPU does not
    return scores.masked_fill(later, -math.inf).softmax(-1, dtype=wide).to(v.dtype) @ v


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


# --8<-- [end:attention]


# --8<-- [start:loss]
def whole(x: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """All logits at once: x (tokens, width), head (vocabulary, width)."""
    return F.cross_entropy(F.linear(x, head), targets)


def in_parts(x: Tensor, head: Tensor, targets: Tensor, parts: int = 8) -> Tensor:
    """The logits of a part of the tokens at a time, made again in backward."""

    def part(x: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, head), targets, reduction="sum")

    pieces = zip(x.chunk(parts), targets.chunk(parts), strict=True)
    losses = [checkpoint(part, *piece, use_reentrant=False) for piece in pieces]
    return torch.stack(losses).sum() / len(targets)


# --8<-- [end:loss]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.how = heads, explicit
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.out(self.how(q, k, v).transpose(1, 2).reshape(rows, length, width))


class MLP(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.in_place = False
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x), inplace=self.in_place))


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm_mlp, self.mlp = nn.LayerNorm(width), MLP(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(self.norm_mlp(x))


# --8<-- [start:model]
class Model(nn.Module):
    """Next-token loss of a small language model; how it saves memory are its attributes."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.loss: Callable[..., Tensor] = whole
        self.checkpointed = False

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.loss(self.norm(x).flatten(0, 1), self.head.weight, targets.flatten())


def with_remedies(
    model: Model,
    attention: Callable[..., Tensor] = explicit,
    loss: Callable[..., Tensor] = whole,
    checkpointed: bool = False,
    in_place: bool = False,
) -> Model:
    """Another model on the same parameters."""
    parameters = {id(p): p for p in model.parameters()}
    other = copy.deepcopy(model, memo=parameters)  # parameters are in the memo, and so are not copied
    other.loss, other.checkpointed = loss, checkpointed
    for block in other.blocks:
        block.attention.how, block.mlp.in_place = attention, in_place
    return other


# --8<-- [end:model]

"""A small language model, its batch, and the MLP of its block."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]  # tokens and targets, both (rows, length)
Run = Callable[[nn.Module, Tensor], Tensor]  # applies a block to its input


# --8<-- [start:mlp]
def mlp(x: Tensor, scale: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """x (tokens, width), scale (width,), up (8 * width, width), down (width, 4 * width)."""
    gate, value = F.linear(F.rms_norm(x, scale.shape, scale), up).chunk(2, dim=-1)
    return x + F.linear(F.silu(gate) * value, down)


# --8<-- [end:mlp]
class Block(nn.Module):
    """A transformer block: x (rows, length, width) to the same shape."""

    def __init__(self, width: int):
        super().__init__()
        self.heads = max(width // 128, 1)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 8 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.scale, self.scale_mlp = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        heads = self.qkv(F.rms_norm(x, self.scale.shape, self.scale)).view(rows, length, 3, self.heads, -1)
        q, k, v = heads.transpose(1, 3).unbind(2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return mlp(x, self.scale_mlp, self.up.weight, self.down.weight)


# --8<-- [start:model]
class Model(nn.Module):
    """Next-token loss of a small language model. `run` applies a block: here checkpointing comes in."""

    def __init__(self, vocabulary: int, width: int, layers: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.run: Run = nn.Module.__call__

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = self.run(block, x)
        logits = self.head(F.rms_norm(x, x.shape[-1:]))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


# --8<-- [end:model]
def small(width: int = 128, rows: int = 2, length: int = 256, vocabulary: int = 512) -> tuple[Model, Batch]:
    """A model with one block, and a batch."""
    torch.manual_seed(0)
    tokens = torch.randint(vocabulary, (rows, length + 1))
    return Model(vocabulary, width, layers=1), (tokens[:, :-1], tokens[:, 1:])


def mlp_inputs(tokens: int = 256, width: int = 64) -> list[Tensor]:
    shapes = (tokens, width), (width,), (8 * width, width), (width, 4 * width)
    return [torch.ones(shape, requires_grad=True) for shape in shapes]

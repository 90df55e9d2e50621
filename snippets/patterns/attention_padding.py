"""Attention over a batch whose rows differ in length: six ways that agree at every token that is no padding.

Run `python -m snippets.patterns.attention_padding` to see on what a row's result depends, way by way.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.attention.varlen import varlen_attn

# Everywhere q, k and v are (rows, tokens, heads, size), as a projection leaves them, or (all tokens, heads, size)
# where the rows are packed. `lengths` says how many tokens of each row are real: the first ones.


# --8<-- [start:real]
def real_tokens(lengths: Tensor, tokens: int) -> Tensor:
    """True where a token is real: (rows, tokens)."""
    return torch.arange(tokens, device=lengths.device) < lengths[:, None]


# --8<-- [end:real]


# --8<-- [start:mask]
def make_mask(lengths: Tensor, tokens: int, causal: bool) -> Tensor:
    """True where a query may look: (rows, 1, 1, tokens), or (rows, 1, tokens, tokens) where attention is causal."""
    keys = real_tokens(lengths, tokens)[:, None, None, :]
    if not causal:
        return keys
    return keys & torch.ones(tokens, tokens, dtype=torch.bool, device=lengths.device).tril()


def with_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)


# --8<-- [end:mask]


# --8<-- [start:float]
def as_float(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to the scores: 0 where a query may look, minus infinity elsewhere."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -math.inf)


# --8<-- [end:float]


# --8<-- [start:causal]
def causal_only(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """No mask at all: right if the padding is behind the real tokens, and the loss leaves it out."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


# --8<-- [end:causal]


# --8<-- [start:flex]
def make_blocks(lengths: Tensor, tokens: int, causal: bool, build: Callable = create_block_mask) -> BlockMask:
    """Which blocks of 128 × 128 scores are needed, once for a batch. A padding query looks nowhere, and gets zero."""

    def may_look(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        real = (query < lengths[row]) & (key < lengths[row])
        return real & (key <= query) if causal else real

    return build(may_look, len(lengths), None, tokens, tokens, device=lengths.device)


def flex(q: Tensor, k: Tensor, v: Tensor, blocks: BlockMask, attend: Callable = flex_attention) -> Tensor:
    """`attend` is torch.compile(flex_attention): without it the formula runs, with all scores in memory."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return attend(q, k, v, block_mask=blocks).transpose(1, 2)


# --8<-- [end:flex]


# --8<-- [start:packing]
class Packing(NamedTuple):
    """Where the rows of a batch stand if their real tokens are laid one after the other."""

    index: Tensor  # of each real token in the batch with padding, seen as rows * tokens tokens
    offsets: Tensor  # where each row begins, and where the last one ends: int32, rows + 1
    shortest: int
    longest: int


def make_packing(lengths: Tensor, tokens: int, device: torch.device) -> Packing:
    """`lengths` is on the CPU, where the batch was made, so that nothing waits for the GPU."""
    index = real_tokens(lengths, tokens).flatten().nonzero().squeeze(1)
    offsets = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    return Packing(index.to(device), offsets.to(device), int(lengths.min()), int(lengths.max()))


def pack(t: Tensor, packing: Packing) -> Tensor:
    """(rows, tokens, ...) without its padding: (real tokens, ...)."""
    return t.flatten(0, 1)[packing.index]


def unpack(t: Tensor, packing: Packing, rows: int, tokens: int) -> Tensor:
    """The way back, with zeros as padding."""
    padded = t.new_zeros(rows * tokens, *t.shape[1:])
    return padded.index_copy(0, packing.index, t).unflatten(0, (rows, tokens))


# --8<-- [end:packing]


# --8<-- [start:varlen]
def variable_length(q: Tensor, k: Tensor, v: Tensor, packing: Packing, causal: bool) -> Tensor:
    """On a GPU, in bf16 or fp16; from torch 2.11 (torch 2.10 has `is_causal` in the place of the window)."""
    window = (-1, 0) if causal else (-1, -1)  # how many tokens a query sees before and after itself; -1 is all
    at, longest = packing.offsets, packing.longest
    return varlen_attn(q, k, v, at, at, longest, longest, window_size=window)


# --8<-- [end:varlen]


# --8<-- [start:around]
def packed_inside(q: Tensor, k: Tensor, v: Tensor, packing: Packing, causal: bool) -> Tensor:
    """For a model that is padded elsewhere: q, k and v are packed, and the result gets its padding back."""
    result = variable_length(*(pack(t, packing) for t in (q, k, v)), packing, causal)
    return unpack(result, packing, *q.shape[:2])


# --8<-- [end:around]


# --8<-- [start:nested]
def nested(q: Tensor, k: Tensor, v: Tensor, packing: Packing, causal: bool) -> Tensor:
    """The packed rows as one nested tensor, which SDPA takes: (rows, heads, length of each row, size)."""

    def as_rows(t: Tensor) -> Tensor:
        between = {"min_seqlen": packing.shortest, "max_seqlen": packing.longest}  # else it asks the GPU
        return torch.nested.nested_tensor_from_jagged(t, packing.offsets, **between).transpose(1, 2)

    result = F.scaled_dot_product_attention(as_rows(q), as_rows(k), as_rows(v), is_causal=causal)
    return result.transpose(1, 2).values()


# --8<-- [end:nested]


# --8<-- [start:formula]
def formula(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """With the scores in memory, as it is often written."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return (scores.masked_fill(~mask, -math.inf).softmax(-1) @ v).transpose(1, 2)


# --8<-- [end:formula]


def spread_lengths(rows: int, tokens: int) -> Tensor:
    """Evenly spread from nothing to the longest, which fills its row, and in no order: half of all tokens are real."""
    spread = [round(tokens * (5 * row % rows + 0.45) / rows) for row in range(rows)]
    return torch.tensor([tokens if length == max(spread) else length for length in spread])


# ---- a model around it ----------------------------------------------------------------------------------------------

IGNORED = -100  # what cross_entropy leaves out unless it is told otherwise


# --8<-- [start:loss]
def masked_loss(logits: Tensor, targets: Tensor, real: Tensor) -> Tensor:
    """The mean over real tokens: logits are (rows, tokens, vocabulary), targets and real (rows, tokens)."""
    targets = targets.masked_fill(~real, IGNORED)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


# --8<-- [end:loss]


class Model(nn.Module):
    """Two layers of attention, each behind a norm, between an embedding and logits; `attend` takes q, k and v."""

    def __init__(self, width: int = 32, heads: int = 2, vocabulary: int = 50):
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(vocabulary, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        x = self.embedding(tokens)
        for norm, qkv in zip(self.norms, self.qkv, strict=True):
            q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in qkv(norm(x)).chunk(3, -1))
            x = x + attend(q, k, v).flatten(-2)
        return self.head(x)


def gradients(model: Model, loss: Tensor) -> Tensor:
    """Of all parameters, one after the other."""
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


# --8<-- [start:alone]
def row_by_row(model: Model, tokens: Tensor, targets: Tensor, lengths: Tensor) -> Tensor:
    """The loss with no padding anywhere: each row alone, as long as it is."""
    losses = []
    for row, length in enumerate(lengths.tolist()):
        logits = model(tokens[row : row + 1, :length], causal_only)
        losses.append(F.cross_entropy(logits[0], targets[row, :length], reduction="sum"))
    return torch.stack(losses).sum() / lengths.sum()


# --8<-- [end:alone]


def proof() -> None:
    """In float64: how far loss and gradients are from those of rows alone, and what other padding tokens change."""
    torch.manual_seed(0)
    lengths, length = torch.tensor([3, 17, 9, 24]), 24
    model = Model().double()
    tokens, targets, others = torch.randint(50, (3, len(lengths), length))
    real, mask = real_tokens(lengths, length), make_mask(lengths, length, causal=True)
    exact = row_by_row(model, tokens, targets, lengths)
    exact_gradients = gradients(model, exact)

    def to_the_right(t: Tensor) -> Tensor:
        """Each row moved, so that its padding comes first."""
        return torch.stack([row.roll(length - n) for row, n in zip(t, lengths.tolist(), strict=True)])

    def loss_of(tokens: Tensor, how: str) -> Tensor:
        if how == "is_causal, padding in front":
            logits = model(to_the_right(tokens), causal_only)
            return masked_loss(logits, to_the_right(targets), to_the_right(real))
        masks = {"mask, causal": mask, "mask, not causal": mask[:, :, -1:]}
        attend = (lambda q, k, v: with_mask(q, k, v, masks[how])) if how in masks else causal_only
        everywhere = how == "is_causal, padding in the loss"
        return masked_loss(model(tokens, attend), targets, torch.ones_like(real) if everywhere else real)

    print(f"{'':32}{'off from rows alone':^28}{'other padding tokens':>24}")
    print(f"{'':32}{'loss':>14}{'gradients':>14}{'change the loss by':>24}")
    ways = ("mask, causal", "is_causal", "is_causal, padding in front", "is_causal, padding in the loss")
    for how in (*ways, "mask, not causal"):
        loss, changed = loss_of(tokens, how), loss_of(torch.where(real, tokens, others), how)
        off = (gradients(model, loss) - exact_gradients).abs().max()
        print(f"{how:<32}{said(loss - exact):>14}{said(off):>14}{said(changed - loss):>24}")


def said(difference: Tensor) -> str:
    """Its order of magnitude, or that it is no more than rounding in float64."""
    size = difference.abs().item()
    return "< 1e-13" if size < 1e-13 else f"{10.0 ** round(math.log10(size)):.0e}"


def main() -> None:
    print("==== proof")
    proof()


if __name__ == "__main__":
    main()

"""Attention over a batch whose rows differ in length: six ways that agree at every token that is no padding.

Run `python -m snippets.patterns.attention_padding` to see on what a row's result depends, way by way.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snippets.patterns.attention_padding_masks import causal_only, make_mask, real_tokens, with_mask

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

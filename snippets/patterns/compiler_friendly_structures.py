"""Rewrites that keep Python structures fixed: offsets of rows, a dictionary's keys; and an exercise with its answer."""

import random
from collections.abc import Iterable
from itertools import pairwise, product

import torch
from torch import Tensor, nn

from snippets.patterns.compiler_friendly_pair import CALLS, Rewrite, side, twins


# --8<-- [start:positions]
def positions_before(x: Tensor, offsets: Tensor, table: Tensor) -> Tensor:
    """Rows packed one behind the other: each token is given its position in its own row."""
    ends = offsets.tolist()
    places = [torch.arange(end - begin, device=x.device) for begin, end in pairwise(ends)]
    return x + table[torch.cat(places)]


def positions_after(x: Tensor, offsets: Tensor, table: Tensor) -> Tensor:
    """The same without a loop: a token's place, less the place where its row begins."""
    place = torch.arange(len(x), device=x.device)
    row = torch.searchsorted(offsets, place, right=True) - 1
    return x + table[place - offsets[row]]


# --8<-- [end:positions]


# --8<-- [start:keys]
class KeysBefore(nn.Module):
    """Adds what a batch brings along: a dictionary, in which some names are missing."""

    def __init__(self, names: Iterable[str], width: int) -> None:
        super().__init__()
        self.maps = nn.ModuleDict({name: nn.Linear(width, width) for name in names})

    def forward(self, x: Tensor, extras: dict[str, Tensor]) -> Tensor:
        for name, extra in extras.items():
            x = x + self.maps[name](extra)
        return x


class KeysAfter(KeysBefore):
    """The same with every name in every batch: what is missing is zero, and is multiplied by zero."""

    def forward(self, x: Tensor, extras: Tensor, present: Tensor) -> Tensor:
        for map_of, extra, here in zip(self.maps.values(), extras.unbind(), present.unbind(), strict=True):
            x = x + here * map_of(extra)
        return x


# --8<-- [end:keys]


# --8<-- [start:exercise]
def exercise(x: Tensor, lengths: Tensor) -> Tensor:
    """The mean of each row over its tokens; what lies behind them is padding."""
    return torch.stack([row[:length].mean(0) for row, length in zip(x, lengths.tolist(), strict=True)])


# --8<-- [end:exercise]


# --8<-- [start:answer]
def answer(x: Tensor, lengths: Tensor) -> Tensor:
    real = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    return torch.where(real[..., None], x, 0).sum(1) / lengths[:, None]


# --8<-- [end:answer]


def of_positions(rows: int, width: int, device: str) -> Rewrite:
    tokens, dice = 4 * rows, random.Random(0)
    table = torch.randn(tokens, width, device=device)
    cuts = [sorted(dice.sample(range(1, tokens), documents)) for documents in (2, 3, 4, 5, 6, 7) * 2]
    inputs = [
        (torch.randn(tokens, width, device=device), torch.tensor([0, *cut, tokens], device=device), table)
        for cut in cuts
    ]
    return Rewrite(side(positions_before, inputs), side(positions_after, inputs))


def of_keys(rows: int, width: int, device: str) -> Rewrite:
    names = ("age", "place", "time", "image")
    before, after = twins(KeysBefore(names, width), KeysAfter(names, width), device)
    x, nothing = torch.randn(rows, width, device=device), torch.zeros(rows, width, device=device)
    subsets = list(product((False, True), repeat=4))[1 : CALLS + 1]
    extras = [
        {name: torch.randn(rows, width, device=device) for name, has in zip(names, subset, strict=True) if has}
        for subset in subsets
    ]
    whole = [torch.stack([extra.get(name, nothing) for name in names]) for extra in extras]
    present = torch.tensor(subsets, device=device).float().unbind()
    return Rewrite(
        side(before, [(x, extra) for extra in extras]),
        side(after, [(x, *both) for both in zip(whole, present, strict=True)]),
    )

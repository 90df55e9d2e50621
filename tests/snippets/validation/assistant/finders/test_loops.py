"""Loops of small kernels: which are the same, and which write apart."""

import pytest
import torch
from torch import nn

from snippets.validation.assistant.found import find
from tests.snippets.validation.planted.seen import evidence

pytestmark = pytest.mark.usefixtures("one_core")


class Twice(nn.Module):
    """A loop that is run twice, by two calls on one line, and a third one."""

    def through(self, x):
        return torch.stack([one.softmax(-1).sum(0) for one in x])

    def forward(self, x):
        return self.through(self.through(x)[..., None]) + torch.stack([one.sin().sum(-1).mean(-1) for one in x])


def test_a_loop_that_runs_twice_is_found_two_times_and_another_is_another():
    found = find(*evidence(lambda: (Twice(), torch.randn(16, 4, 8)), sizes=False))
    assert sorted(one.times for one in found if one.kind == "small-kernels") == [1, 2]


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function, self.f = function, nn.Linear(16, 16)

    def forward(self, x):
        return self.function(self.f(x))


def prefix_sums(x):
    return torch.stack([torch.exp(-x[:, :i].sum(1)) for i in range(16)], dim=1)


def suffix_maxima(x):
    return torch.stack([x[:, i:].amax(1).sin() for i in range(15)], dim=1)


def parts(x):
    return torch.stack([part.sum((0, 1)).sin() for part in x[:55].split([*range(1, 11)])])


def by_class(x):
    total = 0.0
    for c in range(16):
        p, t = x[:, c], (x[:, 0] > c).float()
        total = total + 1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)
    return total


CHANGES = {
    prefix_sums: "torch.cumsum once",
    suffix_maxima: "torch.cummax once",
    parts: "scatter_reduce",
    by_class: "one batched call",
}


@pytest.mark.parametrize("function", CHANGES, ids=lambda one: one.__name__)
def test_turns_that_are_independent_are_done_at_once_as_they_read_their_tensor(function):
    found = find(*evidence(lambda: (Of(function), torch.randn(64, 16)), sizes=False))
    (loop,) = [one for one in found if one.kind == "small-kernels"]
    assert CHANGES[function] in loop.change and loop.weight == "finding"

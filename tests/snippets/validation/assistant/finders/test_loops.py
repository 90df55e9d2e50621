"""Loops of small kernels: which are the same, and which write apart."""

import pytest
import torch
from torch import nn

from snippets.validation.assistant.found import find
from tests.snippets.validation.planted.seen import evidence, faults

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


class Decoder(nn.Module):
    """Each turn's word is read on the host, which makes the next turn's input of it."""

    def __init__(self, following):
        super().__init__()
        self.following, self.words, self.head = following, nn.Embedding(64, 16), nn.Linear(16, 64)

    def forward(self, word):
        words = []
        for t in range(12):
            word = self.following(self.head(self.words(word).tanh() + t).argmax(-1), word)
            words.append(word)
        return torch.stack(words)


FOLLOWING = {
    "a list": lambda best, before: torch.tensor(best.tolist()),
    "an array": lambda best, before: torch.from_numpy(best.numpy() + 1) % 64,
    "a number": lambda best, before: torch.full((2,), best[0].item()),
}


@pytest.mark.parametrize("following", FOLLOWING.values(), ids=FOLLOWING)
def test_turns_that_read_each_other_through_the_host_are_not_independent(following):
    found = find(*evidence(lambda: (Decoder(following).eval(), torch.tensor([1, 2])), sizes=False))
    assert not [one for one in faults(found) if one.kind == "small-kernels"]


def measured_alone(x):
    sizes = []
    for t in range(12):
        sizes.append(torch.tensor([x[t].sin().sum().item()]))
    return x * torch.stack(sizes)[:1]


def summed_inside(x):
    return torch.stack([torch.cat([one.sin().mean(0, keepdim=True) for one in part]).norm() for part in x.view(16, 4, 16)])


def test_a_number_that_no_turn_reads_ties_no_turns():
    found = find(*evidence(lambda: (Of(measured_alone), torch.randn(64, 16)), sizes=False))
    assert "no turn reads another" in next(one.change for one in found if one.kind == "small-kernels")


def test_the_turns_of_an_inner_loop_are_not_counted_as_those_of_the_outer_and_a_line_is_said_once():
    found = find(*evidence(lambda: (Of(summed_inside), torch.randn(64, 16)), sizes=False))
    (loop,) = [one for one in found if one.kind == "small-kernels"]
    assert loop.evidence.startswith("16 turns, ") and len(loop.lines) == 1

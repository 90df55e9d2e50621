"""Small distributions one by one, and those that need to be so."""

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Independent, Normal

from snippets.validation.assistant.found import find
from tests.snippets.validation.planted.seen import faults, recorded

pytestmark = pytest.mark.usefixtures("one_core")


class Of(nn.Module):
    """A function of hidden states and numbers, with weights to use."""

    def __init__(self, function):
        super().__init__()
        self.function, self.f = function, nn.Linear(8, 24)

    def forward(self, x, chosen):
        return self.function(self, x, chosen)


def of_heads(m, x, chosen):
    parts = m.f(x).split([2, 3, 4, 3, 5, 7], -1)
    made = [Categorical(logits=one, validate_args=False) for one in parts]
    asked = torch.stack([one.log_prob(each) for one, each in zip(made, chosen.unbind(-1), strict=False)], -1)
    return asked.sum(-1) + torch.stack([one.entropy() for one in made], -1).sum(-1)


def of_equal_heads(m, x, chosen):
    total = 0
    for one, each in zip(m.f(x).chunk(8, -1), chosen.unbind(-1), strict=True):
        total = total + Categorical(logits=one, validate_args=False).log_prob(each.clamp(max=2))
    return total


def of_normals(m, x, chosen):
    y = m.f(x)
    made = [Normal(y[:, i], y[:, i + 12].exp(), validate_args=False) for i in range(12)]
    return sum(one.log_prob(x[:, 0]) for one in made)


def of_rows(m, x, chosen):
    total = 0
    for part in x.split([2, 3, 4, 5, 6, 12]):
        total = total + Categorical(logits=m.f(part), validate_args=False).entropy().sum()
    return total


def of_rows_and_heads(m, x, chosen):
    total = 0
    for rows, part in enumerate(m.f(x).split([2, 3, 4, 3, 5, 7], -1)):
        total = total + Categorical(logits=part[rows:], validate_args=False).entropy().sum()
    return total


FOUND = {
    of_heads: "pad the logits of all turns to one width with -inf",
    of_rows: "one Categorical of a batch: concatenate the parameters of all turns, and split what it gives",
    of_rows_and_heads: "pad the logits of all turns to one width with -inf, concatenate them, and split",
    of_equal_heads: "one Categorical of a batch: stack the parameters",
    of_normals: "one distribution of a batch: stack the parameters",
}


def found_in(function):
    inputs = torch.randn(32, 8), torch.randint(0, 2, (32, 8))
    found = faults(find(*recorded(lambda: (Of(function), *inputs))))
    return [one for one in found if one.title.startswith("Distributions")]


@pytest.mark.parametrize("function", FOUND, ids=lambda one: one.__name__)
def test_distributions_one_by_one_are_one_of_a_batch(function):
    (one,) = found_in(function)
    assert FOUND[function] in one.change
    assert one.line.function in (function.__name__, "<listcomp>", "<genexpr>")
    assert len(one.lines) == {of_heads: 3}.get(function, 1)


def drawn_in_turn(m, x, chosen):
    total = 0
    for i in range(8):
        made = Categorical(logits=m.f(x)[:, :8], validate_args=False)
        total = total + made.log_prob(chosen[:, i])
        x = x + made.probs
    return total


def of_a_batch(m, x, chosen):
    return Categorical(logits=m.f(x).unflatten(-1, (8, 3)), validate_args=False).log_prob(chosen).sum(-1)


def of_two(m, x, chosen):
    a, b = m.f(x).chunk(2, -1)
    made = [Independent(Normal(one, 1.0, validate_args=False), 1, validate_args=False) for one in (a, b)]
    return sum(one.log_prob(x.repeat(1, 2)[:, :12]) + one.entropy() for one in made)


@pytest.mark.parametrize("function", [drawn_in_turn, of_a_batch, of_two], ids=lambda one: one.__name__)
def test_other_distributions_are_left_alone(function):
    assert not found_in(function)

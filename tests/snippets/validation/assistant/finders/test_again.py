"""Results that are computed again of tensors that have not changed."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import jacrev

from snippets.validation.assistant.found import find
from tests.snippets.validation.planted.seen import faults, recorded

pytestmark = pytest.mark.usefixtures("one_core")


class Of(nn.Module):
    """A function as a module, with weights and a table for each of two layers."""

    def __init__(self, function):
        super().__init__()
        self.function, self.f, self.g = function, nn.Linear(32, 32), nn.Linear(32, 32)
        for name in ("rates0", "rates1"):
            self.register_buffer(name, torch.arange(1, 17) / 16)
        self.register_buffer("cache", torch.zeros(4, 32))

    def forward(self, *inputs):
        return self.function(self, *inputs)


def in_a_loop(m, x, memory):
    for _ in range(3):
        x = torch.tanh(x + m.f(memory).mean(0))
    return x


def encoded(m, memory):
    return torch.tanh(m.f(memory))


def by_a_caller(m, x, memory):
    x = x + encoded(m, memory)
    return x * encoded(m, memory)


def table(m, x, memory):
    for rates in (m.rates0, m.rates1):
        angles = torch.arange(x.shape[0], device=x.device)[:, None] * rates
        turned = [angles.sin().exp().neg().exp(), angles.cos().exp().neg().exp()]
        x = x * torch.cat(turned, -1)
    return x


@pytest.mark.parametrize(
    ("function", "line"), [(in_a_loop, "m.f(memory)"), (by_a_caller, "return x * encoded"), (table, "angles")]
)
def test_results_that_are_computed_again_are_found(function, line):
    made = lambda: (Of(function), (torch.randn(4, 32), torch.randn(4, 32)))  # noqa: E731
    (found,) = [one for one in faults(find(*recorded(made))) if one.kind == "again"]
    assert any(line in each.text for each in found.lines)


def drawn(m, x, memory):
    for _ in range(3):
        x = x + F.dropout(m.f(memory), 0.5).tanh() + torch.randn(4, 32).exp()
    return x


def written(m, x, memory):
    for _ in range(3):
        m.cache[:2].copy_(x[:2])
        x = torch.tanh(m.f(m.cache))
    return x


def of_its_own(m, x, memory):
    return m.f(memory) + m.g(memory) + m.f(x)


@pytest.mark.parametrize("function", [written, of_its_own])
def test_what_has_changed_or_has_other_weights_is_left_alone(function):
    made = lambda: (Of(function), (torch.randn(4, 32), torch.randn(4, 32)))  # noqa: E731
    assert "again" not in {one.kind for one in find(*recorded(made))}


def test_random_numbers_are_not_the_same_again():
    made = lambda: (Of(drawn), (torch.randn(4, 32), torch.randn(4, 32)))  # noqa: E731
    found = [one for one in find(*recorded(made)) if one.kind == "again"]
    assert all("1 kernels" in one.evidence or "2 kernels" in one.evidence for one in found)  # the product alone


class Chosen(nn.Module):
    def forward(self, x, rows):
        kept = rows > 4
        first = x[kept].sum()
        for _ in range(64):
            first = first.sin()
        return first + x[kept].mean()


def test_a_selection_by_a_mask_that_is_made_twice_waits_twice():
    found = find(*recorded(lambda: (Chosen(), torch.randn(16, 8), torch.arange(16))))
    (again,) = [one for one in faults(found) if one.kind == "again"]
    assert "the host waits 1 times" in again.evidence
    assert {line.text[:5] for line in again.lines} == {"first", "retur"}


class Derivatives(nn.Module):
    """A value and its derivative, which has to run the layers for itself."""

    def __init__(self):
        super().__init__()
        self.f, self.g = nn.Linear(8, 8), nn.Linear(8, 1)

    def value(self, point):
        return self.g(self.f(point).tanh().sin().cos().exp())[0]

    def forward(self, x):
        return sum(self.value(row) + jacrev(self.value)(row).sum() for row in x)


def test_what_is_differentiated_is_not_told_to_be_kept():
    found = find(*recorded(lambda: (Derivatives(), torch.randn(6, 8))))
    assert not [one for one in found if one.kind == "again"]

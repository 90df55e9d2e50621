"""Loops over parameters, buffers and gradients."""

import copy

import pytest
import torch
from torch import nn

from snippets.validation.assistant.found import find
from tests.snippets.validation.planted.seen import faults, recorded

pytestmark = pytest.mark.usefixtures("one_core")


class Of(nn.Module):
    """A net and its average, which a function changes or measures."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.net = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(6)))
        self.mean = copy.deepcopy(self.net).requires_grad_(False)
        self.scales = nn.ParameterList(torch.rand(16) for _ in range(12))

    def forward(self, x):
        return self.net(x).sum() + self.function(self, x)


@torch.no_grad()
def averaged(m, x):
    for one, other in zip(m.mean.parameters(), m.net.parameters(), strict=True):
        one.mul_(0.9).add_(other, alpha=0.1)
    return m.mean(x).sum()


@torch.no_grad()
def averaged_anew(m, x):
    for one, other in zip(m.mean.parameters(), m.net.parameters(), strict=True):
        one.data = 0.9 * one.data + 0.1 * other.data
    return m.mean(x).sum()


def penalty(m, x):
    return sum(one.pow(2).sum() for one in m.net.parameters())


def distance(m, x):
    return sum((one - other).norm() for one, other in zip(m.net.parameters(), m.mean.parameters(), strict=True))


def clipped(m, x):
    gradients = torch.autograd.grad(m.mean(m.net(x)).sum(), [*m.net.parameters()])
    total = torch.stack([one.norm() for one in gradients]).norm()
    return sum(one.mul(1 / total).sum() for one in gradients)


@torch.no_grad()
def decayed(m, x):
    for one in m.net.parameters():
        one.mul_(0.99)
    return 0


@torch.no_grad()
def emptied(m, x):
    for one in m.mean.parameters():
        one.zero_()
    return 0


def stepped(m, x):
    weights = [*m.net.parameters()]
    gradients = torch.autograd.grad(m.net(x).sum(), weights, create_graph=True)
    fast = [one - 0.1 * each for one, each in zip(weights, gradients, strict=True)]
    return torch.func.functional_call(m.net, dict(zip(dict(m.net.named_parameters()), fast, strict=True)), x).sum()


FOUND = {
    averaged: "_foreach_lerp_",
    averaged_anew: "_foreach_lerp_",
    penalty: "_foreach_norm",
    distance: "_foreach_",
    clipped: "_foreach_norm",
    decayed: "_foreach_mul_",
    emptied: "_foreach_zero_",
    stepped: "_foreach_",
}


def found_in(function):
    found = faults(find(*recorded(lambda: (Of(function), torch.randn(4, 16)))))
    return [one for one in found if one.kind == "small-kernels"]


@pytest.mark.parametrize("function", FOUND, ids=lambda one: one.__name__)
def test_a_loop_over_a_list_of_tensors_is_found(function):
    one, *_ = [one for one in found_in(function) if FOUND[function] in one.change]
    assert "list" in one.evidence
    assert one.line.function in (function.__name__, "<genexpr>", "<listcomp>")


def of(measure):
    return lambda m, x: sum(measure(one) for one in m.scales)


def clamped(m, x):
    made = [each.clamp(min=0) for each in m.scales]
    return torch.cat(made).sum()


def halved(m, x):
    made = [each * 0.5 for each in m.scales]
    return torch.cat(made).sum()


def mixed_anew(m, x):
    pairs = zip(m.mean.parameters(), m.net.parameters(), strict=True)
    return sum(one.mean() for one in [0.9 * one + 0.1 * other for one, other in pairs])


@torch.no_grad()
def filled(m, x):
    for one in m.mean.parameters():
        one.fill_(1.0)
    return 0


NORM = "torch._foreach_norm(tensors), and one norm of what it gives, stacked"
ABSOLUTE = "torch._foreach_norm(tensors, 1), then .sum() of what it gives, stacked"
LERP = "torch._foreach_lerp(targets, sources, 1 - m) for a moving average"
CHANGES = [
    (of(lambda one: one.abs().sum()), ABSOLUTE),
    (of(lambda one: one.norm(1)), ABSOLUTE),
    (of(lambda one: torch.linalg.vector_norm(one, ord=1)), ABSOLUTE),
    (of(lambda one: one.mean()), ""),
    (of(lambda one: one.abs().amax()), ""),
    (of(lambda one: one.norm(3)), ""),
    (of(lambda one: one.pow(3).sum()), ""),
    (of(lambda one: one.sum().pow(2)), ""),
    (of(lambda one: one.norm()), ABSOLUTE.replace(", 1", "")),
    (of(lambda one: one.norm() ** 2), f"{NORM}, squared"),
    (of(lambda one: one.pow(2).sum()), f"{NORM}, squared"),
    (of(lambda one: (one * one).sum()), f"{NORM}, squared"),
    (lambda m, x: torch.stack([one.norm() for one in m.scales]).norm(), NORM),
    (clamped, "torch._foreach_clamp_min and _foreach_clamp_max"),
    (halved, "torch._foreach_mul(tensors, factor)"),
    (mixed_anew, f"{LERP}; torch._foreach_add(tensors, others, alpha=a) for a step"),
    (filled, "torch._foreach_zero_(tensors), then torch._foreach_add_(tensors, value)"),
]


@pytest.mark.parametrize(("function", "change"), CHANGES)
def test_the_functions_that_are_named_give_the_same(function, change):
    start = "torch._foreach_ functions for the list of tensors"
    assert (f"{start}: {change}" if change else start) in [one.change for one in found_in(function)]


def test_foreach_functions_give_what_loops_give():
    tensors = [torch.randn(3, 4) for _ in range(3)]
    torch.testing.assert_close(
        torch.stack(torch._foreach_norm(tensors, 1)).sum(), sum(one.abs().sum() for one in tensors)
    )
    torch.testing.assert_close(
        torch.stack(torch._foreach_norm(tensors)).norm() ** 2, sum(one.pow(2).sum() for one in tensors)
    )
    torch._foreach_zero_(tensors)
    torch._foreach_add_(tensors, 1.5)
    assert all((one == 1.5).all() for one in tensors)


def scaled(m, x):
    for one in m.scales:
        x = (x * one).sin()
    return x.sum()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def of_results(m, x):
    results = [Doubled.apply(x.roll(i)) for i in range(12)]
    return sum(one.sin().sum() for one in results)


def weighted(m, x):
    return (x @ sum(x.detach()[0, i] * one for i, one in enumerate(m.scales))).sum()


def at_once(m, x):
    torch._foreach_lerp_([*m.mean.parameters()], [*m.net.parameters()], 0.1)
    return 0


def of_three(m, x):
    return sum(one.pow(2).sum() for one in [*m.net.parameters()][:3])


@pytest.mark.parametrize(
    "function", [scaled, of_results, weighted, torch.no_grad()(at_once), of_three], ids=lambda one: one.__name__
)
def test_other_loops_are_no_lists(function):
    assert not [one for one in found_in(function) if "_foreach_" in one.change]

"""Constants that are made again at each call, outside of loops too."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from snippets.validation.assistant.found import find
from tests.snippets.validation.planted.seen import evidence, faults

pytestmark = pytest.mark.usefixtures("one_core")


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function, self.f = function, nn.Linear(64, 64)
        self.register_buffer("mask", torch.ones(128, 128).tril().bool())

    def forward(self, x):
        return self.function(self, self.f(x))


def sinusoids(m, x):
    steps = torch.arange(x.shape[1], device=x.device)[:, None]
    rates = torch.exp(torch.arange(0, 64, 2, device=x.device) * (-math.log(1e4) / 64))
    return x + torch.cat([torch.sin(steps * rates), torch.cos(steps * rates)], -1)


def window(m, x):
    i = torch.arange(x.shape[1], device=x.device)
    near = (i[:, None] - i[None]).abs() <= 8
    return F.scaled_dot_product_attention(x, x, x, attn_mask=near)


def triangle(m, x):
    hidden = torch.triu(torch.full((128, 128), 1.0, device=x.device), 1)
    return x + (hidden @ x)


def decay(m, x):
    return x * torch.linspace(0, 1, x.shape[1], device=x.device).pow(2).neg().exp()[None, :, None]


@pytest.mark.parametrize("function", [sinusoids, window, triangle, decay], ids=lambda one: one.__name__)
def test_a_constant_is_found(function):
    (found,) = faults(find(*evidence(lambda: (Of(function), torch.randn(2, 128, 64)), sizes=False)))
    assert found.kind == "constant" and len(found.rewrites) == 1


def kept(m, x):
    return F.scaled_dot_product_attention(x, x, x, attn_mask=m.mask)


def positions(m, x):
    return x + torch.arange(x.shape[1], device=x.device)[None, :, None]


def state(m, x):
    return x + torch.zeros(128, 64, device=x.device)


def noise(m, x):
    return x + torch.randn(128, 64, device=x.device).mul(2).exp().sqrt()


def scattered(m, x):
    return torch.zeros(2, 64, 64, device=x.device).index_add(1, torch.arange(128, device=x.device) // 2, x)


def from_lengths(m, x):
    lengths = (x.sum((1, 2)) * 0 + 5).long()
    return x * (torch.arange(128, device=x.device)[None] < lengths[:, None])[..., None]


def short(m, x):
    return x + torch.arange(1024, device=x.device).mul(2)[:64]


NONE = [kept, positions, state, noise, from_lengths, short]


@pytest.mark.parametrize("function", NONE, ids=lambda one: one.__name__)
def test_what_is_no_constant_or_small_is_left_alone(function):
    found = faults(find(*evidence(lambda: (Of(function), torch.randn(2, 128 if function is not short else 1, 64)), sizes=False)))
    assert "constant" not in {one.kind for one in found}


def of_a_part(m, x):
    i = torch.arange(128, device=x.device)
    apart = (i[:, None] - i[None]).bool()
    return ((x @ x.mT).repeat(8, 1, 1).exp().masked_fill(apart, 0) @ x.repeat(8, 1, 1)).relu()


def of_few_kernels(m, x):
    x = decay(m, x)
    for _ in range(128):
        x = x.sin()
    return x


@pytest.mark.parametrize("function", [of_a_part, of_few_kernels], ids=lambda one: one.__name__)
def test_a_constant_that_is_little_of_the_step_is_left_alone(function):
    found = faults(find(*evidence(lambda: (Of(function), torch.randn(2, 128, 64)), sizes=False)))
    assert "constant" not in {one.kind for one in found}

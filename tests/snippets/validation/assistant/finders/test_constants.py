"""Constants that are made again at each call, outside of loops too."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from snippets.validation.assistant.finders.constants import same_rows, weights_alone
from snippets.validation.assistant.found import find
from tests.snippets.validation.planted.seen import faults, recorded

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


def relative(m, x):
    steps = torch.arange(16, device=x.device)
    rows, columns = torch.meshgrid(steps[:8], steps, indexing="ij")
    places = torch.stack([rows, columns]).flatten(1)
    apart = places[:, :, None] - places[:, None] + 7
    return x + m.f.weight[(apart[0] + apart[1]) % 64].sum(-1)[:, :64]


CONSTANT = [sinusoids, window, triangle, decay, relative]


@pytest.mark.parametrize("function", CONSTANT, ids=lambda one: one.__name__)
def test_a_constant_is_found(function):
    (found,) = faults(find(*recorded(lambda: (Of(function), torch.randn(2, 128, 64)))))
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
    rows = 1 if function is short else 128
    found = faults(find(*recorded(lambda: (Of(function), torch.randn(2, rows, 64)))))
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
    found = faults(find(*recorded(lambda: (Of(function), torch.randn(2, 128, 64)))))
    assert "constant" not in {one.kind for one in found}


class Weighted(nn.Module):
    """A function of an input and of weights, one of them in 8 bits."""

    def __init__(self, function):
        super().__init__()
        self.function, self.f = function, nn.Linear(64, 64)
        self.q, self.k, self.v, self.noise = (nn.Parameter(torch.randn(64, 64)) for _ in range(4))
        self.places = nn.Embedding(128, 64)
        self.register_buffer("packed", torch.randint(-8, 8, (128, 64), dtype=torch.int8))

    def forward(self, x):
        return self.function(self, x)


def stacked(m, x):
    return x @ torch.cat([m.q, m.k, m.v], 1)


def stretched(m, x):
    return x + F.interpolate(m.q[None, None], size=(128, 64), mode="bilinear")[0]


def looked_up(m, x):
    return x + m.places(torch.arange(128, device=x.device))


def unpacked(m, x):
    return x @ (m.packed.float() * m.noise.mean()).mT


def after_a_read(m, x):
    part = int(x.sum()) % 2 + 1
    return x * torch.cat([m.q * part, m.k], 1).sum()


def scaled(m, x):
    return x * m.noise[0, 0].exp().clamp(max=9)


def updated(m, x):
    with torch.no_grad():
        m.q.mul_(0.5)
    return x @ torch.cat([m.q, m.q.sin()], 1)


def updated_last(m, x):
    y = x @ torch.cat([m.q, m.q.sin()], 1)
    with torch.no_grad():
        m.q.mul_(0.5)
    return y


def perturbed(m, x):
    return x @ torch.cat([m.q, m.k + torch.randn_like(m.noise)], 1)


def of_sizes(m, x):
    return decay(m, x)


def of_a_deep_net(m, x):
    y = stacked(m, x)
    for _ in range(32):
        y = y.sin()
    return y


def of_weights(function, training=False, gradient=None):
    gradient = training if gradient is None else gradient
    module = Weighted(function).train(training).requires_grad_(gradient)
    made = recorded(lambda: (module, torch.randn(8, 128, 64)))
    return [*weights_alone(*made), *same_rows(*made)]


@pytest.mark.parametrize("function", [stacked, stretched], ids=lambda one: one.__name__)
def test_what_depends_on_weights_alone_is_found_in_evaluation_mode(function):
    (found,) = of_weights(function)
    assert found.weight == "finding" and "after loading the weights" in found.change
    assert "return x" in found.line.text
    assert not of_weights(function, training=True, gradient=False)
    assert not of_weights(function, training=False, gradient=True)


LEFT_ALONE = [looked_up, unpacked, scaled, updated, updated_last, perturbed, of_sizes, of_a_deep_net]


def times(m, x):
    small = m.noise[:1]
    for _ in range(8):
        small = (small @ m.q).tanh()
    for _ in range(8):
        x = x.repeat(2, 1, 1).sin()[: len(x)]
    return x * small


def test_launches_alone_are_worth_knowing():
    assert [one.weight for one in of_weights(times)] == ["note"]


@pytest.mark.parametrize("function", LEFT_ALONE, ids=lambda one: one.__name__)
def test_what_may_change_or_costs_little_is_left_alone(function):
    assert not of_weights(function)


def test_after_a_number_was_read_nothing_counts_as_fixed():
    assert not of_weights(after_a_read)


def expanded_first(m, x):
    state = m.q.expand(len(x), 64, 64)
    for _ in range(3):
        state = torch.tanh(m.k @ state)
    return x @ state


def expanded_last(m, x):
    state = m.q
    for _ in range(3):
        state = torch.tanh(m.k @ state)
    return x @ state.expand(len(x), 64, 64)


def met_at_once(m, x):
    return torch.tanh(m.q.expand(len(x), 64, 64) @ x.mT)


def averaged(m, x):
    state = m.q.expand(len(x), 64, 64).mean(0)
    for _ in range(3):
        state = torch.tanh(m.k @ state)
    return x @ state


def expanded_to_two(m, x):
    state = m.q.expand(2, 64, 64)
    for _ in range(3):
        state = torch.tanh(m.k @ state)
    return x @ state.sum(0)


def expanded_in_a_deep_net(m, x):
    y = expanded_first(m, x).repeat(8, 1, 1)
    for _ in range(32):
        y = y.sin()
    return y


@pytest.mark.parametrize("training", [True, False])
def test_what_is_the_same_for_every_row_is_found_where_it_is_expanded(training):
    (found,) = [one for one in of_weights(expanded_first, training) if one.kind == "wasted"]
    assert found.line.text == "state = m.q.expand(len(x), 64, 64)" and "one row" in found.change


def test_what_is_expanded_first_is_told_once():
    module = Weighted(expanded_first).eval().requires_grad_(False)
    found = faults(find(*recorded(lambda: (module, torch.randn(8, 128, 64)))))
    assert [one.kind for one in found if one.kind in ("constant", "wasted")] == ["wasted"]


ONCE = [expanded_last, met_at_once, averaged, expanded_to_two, expanded_in_a_deep_net]


@pytest.mark.parametrize("function", ONCE, ids=lambda one: one.__name__)
def test_what_meets_the_input_or_is_expanded_last_is_left_alone(function):
    assert not of_weights(function, training=True)

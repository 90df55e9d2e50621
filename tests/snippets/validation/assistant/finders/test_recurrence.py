"""Loops that carry a weighted sum on: what removes the loop is named, and tried where the states are stacked."""

import pytest
import torch
from torch import nn

from snippets.validation.assistant.found import find
from snippets.validation.assistant.stages import Stages
from snippets.validation.assistant.trials import try_rewrites
from tests.snippets.validation.planted.seen import made, recorded

pytestmark = pytest.mark.usefixtures("one_core")


class Of(nn.Module):
    """A function as a module, of an input and of weights between zero and one."""

    def __init__(self, function):
        super().__init__()
        self.function, self.f, self.keep = function, nn.Linear(8, 8), nn.Parameter(torch.rand(8))

    def forward(self, x):
        return self.function(self, self.f(x))


def one_weight(m, x):
    h, states = torch.zeros_like(x[0]), []
    for t in range(len(x)):
        h = 0.9 * h + x[t]
        states.append(h)
    return torch.stack(states)


def per_channel(m, x):
    h = x[0]
    states = [h]
    for one in x[1:]:
        h = one * (1 - m.keep) + h * m.keep
        states.append(h)
    return torch.stack(states, 1)


def per_turn(m, x):
    gates, h, states = x.sigmoid(), torch.zeros_like(x[0]), []
    for gate, one in zip(gates, x, strict=True):
        h = gate * h + (1 - gate) * one
        states.append(h)
    return torch.stack(states, dim=-1)


def read_out(m, x):
    h, outputs = torch.zeros(*x.shape[1:], 64, device=x.device), []
    keep = x.mean((1, 2)).sigmoid()
    for t in range(len(x)):
        h = keep[t] * h + x[t, ..., None] * x[t, ..., None, :].repeat(1, 1, 8)
        outputs.append(h.square().sum(-1))
    return torch.stack(outputs)


def with_products(m, x):
    h, outputs = torch.zeros_like(x[0]), []
    for t in range(len(x)):
        h = torch.lerp(h, m.f(x[t]), m.keep)
        outputs.append(m.f(h))
    return torch.stack(outputs)


def backwards_in_place(m, x):
    made = torch.zeros_like(x)
    made[-1] = x[-1]
    for t in reversed(range(len(x) - 1)):
        made[t] = x[t] + 0.95 * made[t + 1]
    return made


def summed(m, x):
    total, sums = torch.zeros_like(x[0]), []
    for one in x:
        total = total + one
        sums.append(total)
    return torch.stack(sums)


def transmitted(m, x):
    light, seen = torch.ones_like(x[0]), []
    for one in x:
        light = light * (1 - one.sigmoid())
        seen.append(light)
    return torch.stack(seen)


def spread(m, x):
    made = torch.zeros_like(x[:4])
    for t in range(len(x)):
        made[t % 3] += x[t].exp()
    return made


POWERS, MATRIX, SCAN = "matrix of powers", "products between two turns", 'with combine_mode="generic"'
CHANGES = {
    one_weight: POWERS,
    per_channel: SCAN,
    per_turn: SCAN,
    read_out: MATRIX,
    with_products: SCAN,
    backwards_in_place: POWERS,
    summed: "torch.cumsum",
    transmitted: "torch.cumprod",
    spread: "one index_add",
}


def loop_in(function):
    found = find(*recorded(lambda: (Of(function), torch.randn(16, 4, 8))))
    (loop,) = [one for one in found if one.kind == "small-kernels"]
    return loop


@pytest.mark.parametrize("function", CHANGES, ids=lambda one: one.__name__)
def test_what_removes_the_loop_is_named(function):
    loop = loop_in(function)
    assert CHANGES[function] in loop.change and loop.weight == "finding"
    assert "no turn reads another" not in loop.change


def nonlinear(m, x):
    h = x[0]
    for one in x:
        h = 0.5 * h + (h + one).tanh()
    return h


def multiplied_by_itself(m, x):
    h = x[0]
    for one in x:
        h = h * (1 - h) + one
    return h


def gated_by_itself(m, x):
    h = x[0]
    for one in x:
        h = torch.where(h.bool(), h, one) + one
    return h


def diffused(m, x):
    made = x[0].clone()
    for _ in range(16):
        made[1:-1] = made[1:-1] + 0.1 * (made[2:] - 2 * made[1:-1] + made[:-2])
    return made


def mixed(m, x):
    h = x[0]
    for one in x:
        h = h @ m.f.weight + one
    return h


@pytest.mark.parametrize("function", [nonlinear, multiplied_by_itself, gated_by_itself, diffused, mixed])
def test_other_recurrences_are_left_to_the_compiler(function):
    loop = loop_in(function)
    assert loop.weight == "note" and "compile the step" in loop.change and "scan" not in loop.change


def written_apart(m, x):
    made = torch.zeros_like(x)
    for t in range(len(x)):
        made[t] = x[t].exp().sin()
    return made


def added_up(m, x):
    total = torch.zeros_like(x[0])
    for one in x:
        total = total + m.f(one).exp()
    return total


@pytest.mark.parametrize("function", [written_apart, added_up])
def test_turns_that_only_write_or_add_into_one_result_are_independent(function):
    assert "one batched call" in loop_in(function).change


def after_layers(m, x):
    return per_turn(m, per_turn(m, x).movedim(-1, 0))


TRIED = [one_weight, per_channel, per_turn, summed, after_layers]


@pytest.mark.parametrize("function", TRIED, ids=lambda one: one.__name__)
def test_a_scan_of_stacked_states_is_right(function):
    subject = made(lambda: (Of(function), torch.randn(16, 4, 8)))
    loop = loop_in(function)
    assert len(loop.rewrites) == (2 if function is after_layers else 1)
    (tried,) = try_rewrites(subject, [loop], Stages(60, lambda text: None))
    assert tried.tried and "other results" not in tried.tried and "raises" not in tried.tried


@pytest.mark.parametrize("function", [read_out, with_products, backwards_in_place])
def test_what_is_not_stacked_as_it_is_stays_untried(function):
    assert loop_in(function).rewrites == ()

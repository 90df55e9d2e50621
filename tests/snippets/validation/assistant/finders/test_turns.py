"""Turns of a loop: weights of their own, work before and after the loop, how many there are, and where."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, hessian, jacrev, stack_module_state, vmap

from snippets.validation.assistant.found import find
from tests.snippets.validation.planted.seen import faults, recorded

pytestmark = pytest.mark.usefixtures("one_core")


class Of(nn.Module):
    """A function as a module, with members that have weights of their own."""

    def __init__(self, function, member=lambda: nn.Linear(16, 8), count=12):
        super().__init__()
        self.function, self.f, self.cell = function, nn.Linear(16, 16), nn.GRUCell(16, 16)
        self.out, self.query = nn.Linear(16, 256), nn.Linear(16, 16)
        self.members = nn.ModuleList(member() for _ in range(count))
        self.named = nn.ModuleDict({str(i): member() for i in range(count)})
        self.stack = nn.Parameter(torch.randn(6, 4, 16))

    def forward(self, x):
        return self.function(self, x)


def loops_in(function, *options, x=None):
    x = torch.randn(32, 12, 16) if x is None else x
    found = find(*recorded(lambda: (Of(function, *options), x)))
    return [one for one in found if one.kind == "small-kernels"]


def stacked(m, x):
    return torch.stack([head(x[:, i]) for i, head in enumerate(m.members)], 1)


def named(m, x):
    out = {}
    for i, head in m.named.items():
        out[i] = head(x[:, int(i)])
    return torch.cat(list(out.values()), 1)


def written(m, x):
    out = x.new_empty(32, 12, 8)
    for i, head in enumerate(m.members):
        out[:, i] = head(x[:, i])
    return out


def summed(m, x):
    return sum(member(x) for member in m.members) / len(m.members)


def deep():
    return nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 8))


OWN = {
    "heads that are stacked": (stacked,),
    "heads by name": (named,),
    "heads that are written": (written,),
    "deep heads": (stacked, deep),
    "an ensemble": (summed, deep, 5),
}


@pytest.mark.parametrize("options", OWN.values(), ids=OWN)
def test_turns_with_weights_of_their_own_are_stacked(options):
    (loop,) = faults(loops_in(*options))
    turns = options[2] if len(options) > 2 else 12
    assert loop.evidence.startswith(f"{turns} turns") and "weights of its own, of the same shapes" in loop.evidence
    assert "stack the weights" in loop.change and ("vmap" in loop.change) is (deep in options)


def in_sequence(m, x):
    for member in m.members:
        x = member(x).relu()
    return x


def each_of_all_before(m, x):
    states = [x[:, 0]]
    for member in m.members:
        states.append(member(torch.stack(states).sum(0)))
    return torch.stack(states)


def by_the_one_before_the_last(m, x):
    one, other = x[:, 0], x[:, 1]
    for member in m.members:
        one, other = other, member(one).tanh()
    return other


def of_layers(m, x):
    state = x.cos()
    for member, other in zip(m.members, m.named.values(), strict=True):
        x = x + member(x) * other(state)
    return x


def of_several_widths():
    of_several_widths.width = getattr(of_several_widths, "width", 0) + 1
    return nn.Linear(16, of_several_widths.width)


def apart(m, x):
    return [member(x[:, i]) for i, member in enumerate(m.members)]


def as_wide():
    return nn.Linear(16, 16)


def large():
    return nn.Linear(2048, 2048)


NO_OWN = {
    "layers": (in_sequence, as_wide),
    "layers that read all before": (each_of_all_before, as_wide),
    "layers that skip one": (by_the_one_before_the_last, as_wide),
    "a layer and what it is given": (of_layers, as_wide),
    "several widths": (apart, of_several_widths),
    "four members": (summed, deep, 4),
}


@pytest.mark.parametrize("options", NO_OWN.values(), ids=NO_OWN)
def test_layers_and_turns_that_differ_are_not_stacked(options):
    assert not [one for one in faults(loops_in(*options)) if "stack the weights" in one.change]


def test_a_few_large_products_fill_a_gpu_as_they_are():
    assert not loops_in(summed, lambda: nn.Sequential(large(), nn.ReLU(), large()), 4, x=torch.randn(256, 2048))


def attended(m, x):
    state, outputs = x[:, 0], []
    for _ in range(12):
        weights = torch.bmm(m.query(x), state[:, :, None]).softmax(1)
        state = m.cell((weights * x).sum(1), state)
        outputs.append(m.out(state))
    return torch.stack(outputs, 1)


def generated(m, x):
    state, word, outputs = x[:, 0], x[:, 1], []
    for _ in range(12):
        state = m.cell(word, state)
        outputs.append(m.out(state))
        word = outputs[-1][:, :16].tanh()
    return torch.stack(outputs, 1)


def selective(m, x):
    h, outputs = x.new_zeros(32, 16), []
    for now in x.unbind(1):
        rate = F.softplus(m.f(now))
        h = torch.exp(-rate) * h + rate * now
        outputs.append(h)
    return torch.stack(outputs, 1)


def test_work_that_the_state_does_not_need_leaves_the_loop():
    (loop,) = loops_in(attended)
    before, after = (line.number for name in ("query", "out") for line in loop.lines if f"m.{name}(" in line.text)
    assert f"(line {before}) before the loop" in loop.change and f"(line {after}) after the loop" in loop.change
    (loop,) = loops_in(selective)
    (line,) = [line.number for line in loop.lines if "m.f(" in line.text]
    assert (
        "associative_scan" in loop.change
        and f"before the loop, for all turns at once, what reads no state (line {line})" in loop.change
    )


def test_what_the_next_turn_reads_stays_in_the_loop():
    assert all("after the loop" not in one.change for one in loops_in(generated))


def residual(m, point):
    field = lambda p: m.out(m.f(p).tanh())[0]  # noqa: E731
    return m.f(point).sum() + jacrev(field)(point).sum() + hessian(field)(point).trace()


def at_points(m, x):
    return torch.stack([residual(m, point) for point in x[:, 0]])


def noisy(m, row):
    return F.dropout(m.f(row).tanh(), 0.5, True).sum()


def branching(m, row):
    return m.f(row).sum() if row.sum() > 0 else m.f(row).tanh().sum()


def test_a_turn_that_is_a_call_of_a_function_is_mapped_and_its_line_is_named():
    (loop,) = loops_in(at_points)
    assert "torch.vmap of residual" in loop.change
    assert any("for point in x" in line.text for line in loop.lines)


@pytest.mark.parametrize("function", [noisy, branching], ids=lambda one: one.__name__)
def test_what_draws_or_branches_is_not_mapped(function):
    found = loops_in(lambda m, x: torch.stack([function(m, row) for row in x[:, 0]]))
    assert found and all("vmap" not in one.change for one in found)


class Adapter(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.down, self.up = nn.Parameter(torch.randn(6, 4, wide)), nn.Parameter(torch.randn(6, wide, 4))

    def forward(self, x, which):
        return torch.stack([F.linear(F.linear(row, self.down[i]), self.up[i]) for row, i in zip(x, which)])  # noqa: B905


class Adapters(nn.Module):
    """Two adapters in each of two blocks: the loop of one method runs four times."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.ModuleList(Adapter(16) for _ in range(2)) for _ in range(2))

    def forward(self, x, which):
        for first, second in zip(self.first, self.second, strict=True):
            x = first(x, which)
            x = second(x, which)
        return x


def test_the_turns_of_a_loop_that_runs_several_times_add_up():
    places = [0, 3, 5, 1, 2, 4, 0, 1, 5, 2]
    found = find(*recorded(lambda: (Adapters(), torch.randn(10, 4, 16), places)))
    (loop,) = [one for one in found if one.kind == "small-kernels"]
    assert loop.evidence.startswith("40 turns, 80 kernels") and "a part of the same weights" in loop.evidence
    assert "one index tensor" in loop.change


def long(m, x):
    state = x[:, 0]
    for _ in range(90):
        state = (m.f(state).tanh() + x[:, 1]).sin()
    return state


def growing(m, x):
    state, seen = x[:, 0], x[:, :2]
    for _ in range(90):
        seen = torch.cat([seen, state[:, None]], 1)
        state = m.f(state + seen.softmax(1).sum(1)).tanh()
    return state


@pytest.mark.parametrize(("function", "steady"), [(long, True), (growing, False)])
def test_a_loop_of_most_launches_is_a_finding_whatever_its_turns_read(function, steady):
    (loop,) = loops_in(function)
    assert loop.weight == "finding" and "mode='reduce-overhead'" in loop.change
    assert ("once all turns have the same sizes" in loop.change) is not steady


class Dynamics(nn.Module):
    """A mean that the next turn needs, and a spread that none does, of one product."""

    def __init__(self):
        super().__init__()
        self.f, self.g, self.out = nn.Linear(16, 16), nn.Linear(16, 32), nn.Linear(16, 32)

    def forward(self, state):
        mean, spread = self.g(self.f(state).tanh()).chunk(2, -1)
        return mean, spread.exp()


class Rollout(nn.Module):
    """Turns of one model, or of several at once by vmap; a result of each turn may be read out of the state."""

    def __init__(self, mapped, reads=False, turns=12):
        super().__init__()
        self.reads, self.turns, self.model = reads, turns, Dynamics()
        self.mapped = {name: one.detach().clone() for name, one in stack_module_state([Dynamics()] * 3)[0].items()}
        self.weights = nn.ParameterList(self.mapped.values()) if mapped else None

    def step(self, state):
        if self.weights is None:
            return self.model(state)
        weights = dict(zip(self.mapped, self.weights, strict=True))
        return vmap(lambda own, row: functional_call(self.model, own, (row,)))(weights, state)

    def forward(self, state):
        spreads = []
        for _ in range(self.turns):
            mean, spread = self.step(state)
            state = state + 0.1 * mean
            spreads.append(self.model.out(state) if self.reads else spread)
        return torch.stack(spreads)


@functools.cache
def rollout(*options):
    return find(*recorded(lambda: (Rollout(*options), torch.randn(3, 32, 16))))


@pytest.mark.parametrize("mapped", [True, False])
def test_a_product_of_which_the_next_turn_reads_a_part_stays_in_the_loop(mapped):
    for one in (one for one in rollout(mapped) if one.kind == "small-kernels"):
        assert one.weight == "note" and "loop" not in one.change.partition("each turn reads")[2]


def test_a_product_that_no_later_turn_reads_may_leave_the_loop():
    (one,) = [one for one in rollout(False, True) if one.kind == "small-kernels"]
    assert one.weight == "finding" and "after the loop" in one.change


def test_what_vmap_gives_is_followed_into_no_chain():
    assert all(int(one.evidence.split()[0]) < 12 for one in rollout(True) if one.kind == "chain")


class Frames(nn.Module):
    """What a function does with each of twelve frames, with the same weights, or with weights of its own."""

    def __init__(self, turn, own=False, batched=True):
        super().__init__()
        self.turn, self.own, self.batched = turn, own, batched
        self.conv, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.GroupNorm(2, 8)
        self.f = nn.Linear(8, 8)
        self.convs = nn.ModuleList(nn.Conv2d(3, 8, 3) for _ in range(12))

    def forward(self, x):
        frames = x.unbind(1) if self.batched else x[0].unbind(0)
        layers = self.convs if self.own else [self.conv] * 12
        return torch.stack([self.turn(self, conv, one) for conv, one in zip(layers, frames, strict=True)], 1)


def encode(m, conv, frame):
    return m.f(F.silu(m.norm(conv(frame))).mean((-2, -1)))


def plain(m, conv, frame):
    return m.f(conv(frame).relu().mean((-2, -1)))


def with_dropout(m, conv, frame):
    return F.dropout(encode(m, conv, frame), 0.1)


def less_the_mean(m, conv, frame):
    y = encode(m, conv, frame)
    return y - y.mean(0)


def contrast(m, conv, frame):
    y = encode(m, conv, frame)
    return (y @ y.T).softmax(0)


def to_one(m, conv, frame):
    return encode(m, conv, frame).square().mean()[None]


def frames(turn, **options):
    made = lambda: (Frames(turn, **options), torch.randn(4, 12, 3, 8, 8))  # noqa: E731
    (one,) = [each for each in find(*recorded(made)) if each.kind == "small-kernels"]
    return one.change


@pytest.mark.parametrize("turn", [encode, with_dropout], ids=lambda one: one.__name__)
def test_turns_of_the_same_weights_are_folded_into_the_batch(turn):
    change = frames(turn)
    assert "x.flatten(0, 1)" in change and "unflatten" in change and "vmap" not in change


@pytest.mark.parametrize("turn", [less_the_mean, contrast, to_one], ids=lambda one: one.__name__)
def test_turns_whose_rows_read_each_other_are_not_folded(turn):
    change = frames(turn)
    assert "flatten" not in change and "batched call" in change


def test_turns_of_weights_of_their_own_or_without_a_batch_are_not_folded():
    assert "flatten" not in frames(encode, own=True) and "flatten" not in frames(plain, batched=False)

"""Pieces that are copied into one tensor, and what would need no copy."""

import functools

import pytest
import torch
from torch import nn

from snippets.validation.assistant.found import find
from snippets.validation.assistant.rewrites import Rewritten
from tests.snippets.validation.planted.seen import DEVICE, faults, recorded

pytestmark = pytest.mark.usefixtures("one_core")


class Of(nn.Module):
    """A function as a module, with weights to use."""

    def __init__(self, function):
        super().__init__()
        self.function, self.f = function, nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

    def forward(self, x):
        return self.function(self, x)


@functools.cache
def found_in(function, *shape, title):
    """The findings of a title, after a look at whether what they would try gives the same."""
    torch.manual_seed(0)
    module, x = Of(function), torch.randn(*shape, device=DEVICE)
    found = [one for one in faults(find(*recorded(lambda: (module, x)))) if one.title.startswith(title)]
    for one in found:
        torch.testing.assert_close(Rewritten(module, one.rewrites)(x), module(x))
    return found


def stacked(m, x):
    return torch.stack([f(x) for f in m.f]).sum(0)


def stacked_at_the_end(m, x):
    return torch.stack([f(x).tanh() for f in m.f], dim=-1).mean(-1, keepdim=True)


def largest_of_joined(m, x):
    return torch.cat([f(x).unsqueeze(1) for f in m.f], dim=1).amax(dim=1)


RUNNING = {stacked: "total + piece", stacked_at_the_end: "divided at the end", largest_of_joined: "torch.maximum"}


@pytest.mark.parametrize("function", RUNNING, ids=lambda one: one.__name__)
def test_pieces_that_are_joined_to_be_reduced_are_found(function):
    (one,) = found_in(function, 2**12, 64, title="Pieces")
    assert RUNNING[function] in one.change and one.rewrites and one.saves == 6 * 2**20
    assert one.line.function in (function.__name__, "<listcomp>")


def over_rows(m, x):
    return torch.stack([f(x) for f in m.f]).sum(1)


def weighed(m, x):
    made = torch.stack([f(x) for f in m.f])
    return (made.softmax(0) * made).sum(0)


def read_twice(m, x):
    made = torch.stack([f(x) for f in m.f])
    return made.mean(0) / made.std(0)


def returned(m, x):
    made = torch.stack([f(x) for f in m.f])
    return made, made.sum(0)


def rows_joined(m, x):
    return torch.cat([f(x) for f in m.f]).sum(0)


def added(m, x):
    return sum(f(x) for f in m.f)


NEEDED = [over_rows, weighed, read_twice, returned, rows_joined, added]


@pytest.mark.parametrize("function", NEEDED, ids=lambda one: one.__name__)
def test_pieces_that_are_needed_beside_each_other_are_left_alone(function):
    assert not found_in(function, 2**12, 64, title="Pieces")


def votes(m, x):
    return torch.stack([x > i for i in range(8)]).sum(0)


def bytes_summed(m, x):
    return torch.stack([(x * i).to(torch.uint8) for i in range(8)]).sum(0, dtype=torch.uint8)


def halves(m, x):
    return torch.stack([f(x).bfloat16() for f in m.f]).sum(0)


def halves_to_floats(m, x):
    return torch.stack([f(x).bfloat16() for f in m.f]).mean(0, dtype=torch.float32)


def floats_to_doubles(m, x):
    return torch.stack([f(x) for f in m.f]).sum(0, dtype=torch.float64)


OF_OTHER_TYPES = [votes, bytes_summed, halves, halves_to_floats, floats_to_doubles]


@pytest.mark.parametrize("function", OF_OTHER_TYPES, ids=lambda one: one.__name__)
def test_a_sum_that_the_type_of_the_pieces_does_not_hold_is_left_alone(function):
    assert not found_in(function, 2**13, 64, title="Pieces")


def test_the_largest_of_pieces_needs_no_other_type():
    (one,) = found_in(lambda m, x: torch.stack([f(x).bfloat16() for f in m.f]).amax(0), 2**13, 64, title="Pieces")
    assert "torch.maximum" in one.change and one.rewrites


def test_few_bytes_of_pieces_are_left_alone():
    assert not found_in(stacked, 2**9, 64, title="Pieces")


def by_steps(m, x):
    return m.f[0](torch.stack([x[:, i : i + 64] for i in range(x.shape[1] - 63)], dim=1))


def by_twos(m, x):
    return m.f[0](torch.stack([x.narrow(1, i, 64) for i in range(0, x.shape[1] - 63, 2)]))


def of_rows(m, x):
    frames = [x[i : i + 16] for i in range(0, 480, 8)]
    return torch.stack(frames).mean(1)


def shifted(m, x):
    return torch.cat([x[:-2], x[1:-1], x[2:]], -1).tanh()


def dilated(m, x):
    return torch.stack([x[:, 0:4096], x[:, 2:4098], x[:, 4:4100]], -1) @ x[:3, :1]


def patches(m, x):
    y = x.view(32, 32, 8, 16)
    return torch.stack([y[..., i : i + 4, j : j + 4] for i in range(5) for j in range(13)], 2).sum(-1)


def neighbours(m, x):
    y = x.view(32, 4, 64, 64)
    return torch.stack([y[..., i : i + 62, j : j + 62] for i in range(3) for j in range(3)], 2).tanh()


def neighbours_apart(m, x):
    y = x.view(32, 4, 64, 64)
    return torch.stack([y[..., i : i + 62, j : j + 60] for i in range(3) for j in (0, 2, 4)], 2).tanh()


def frames(m, x):
    return torch.stack([x[:, i : i + 64] for i in range(0, 449, 8)], 1)


def later_frames(m, x):
    return torch.stack([x[:, i : i + 64] for i in range(3, 449, 8)], 1)


def fewer_steps(m, x):
    return torch.stack([x[:, i : i + 64] for i in range(50)], -1)


WINDOWS = {
    by_steps: ((32, 512), "x.unfold(1, 64, 1)"),
    by_twos: ((32, 512), "x.unfold(1, 64, 2)"),
    of_rows: ((512, 64), "x.narrow(0, 0, 488).unfold(0, 16, 8)"),
    shifted: ((2**14, 64), "x.unfold(0, 3, 1)"),
    dilated: ((64, 4100), "x.unfold(1, 5, 1)[..., ::2]"),
    patches: ((32, 2**12), "x.unfold(2, 4, 1).unfold(3, 4, 1)"),
    neighbours: ((32, 2**14), "x.unfold(2, 3, 1).unfold(3, 3, 1)"),
    neighbours_apart: ((32, 2**14), "x.unfold(2, 3, 1).unfold(3, 5, 1)[..., ::2]"),
    frames: ((32, 512), "x.unfold(1, 64, 8)"),
}


@pytest.mark.parametrize("function", WINDOWS, ids=lambda one: one.__name__)
def test_windows_that_overlap_are_a_view(function):
    shape, change = WINDOWS[function]
    (one,) = found_in(function, *shape, title="Slices")
    assert change in one.change and bool(one.rewrites) == (function in (by_steps, by_twos, of_rows, frames))


@pytest.mark.parametrize("function", [frames, later_frames, fewer_steps], ids=lambda one: one.__name__)
def test_a_view_has_as_many_windows_as_there_are_slices(function):
    (one,) = found_in(function, 32, 512, title="Slices")
    x = torch.randn(32, 512)
    assert torch.equal(eval(one.change.partition(" gives")[0], {"x": x}), function(None, x))


KERNELS = {
    by_steps: "64 reads",
    frames: "64 and stride=8 reads",
    dilated: "3 and dilation=2 reads",
    patches: "4 × 4 reads",
    neighbours: "3 × 3 reads",
    neighbours_apart: "3 × 3 and dilation=(1, 2) reads",
}


@pytest.mark.parametrize("function", KERNELS, ids=lambda one: one.__name__)
def test_windows_that_overlap_are_a_convolution(function):
    (one,) = found_in(function, *WINDOWS[function][0], title="Slices")
    assert f"a kernel of {KERNELS[function]}" in one.change


def apart(m, x):
    return m.f[0](torch.stack([x[:, i : i + 64] for i in range(0, x.shape[1], 64)], dim=1))


def chosen(m, x):
    return m.f[0](torch.stack([x[:, i : i + 64] for i in (0, 3, 4, 9, 11, 100)] * 3, dim=1))


def of_several(m, x):
    return m.f[0](torch.stack([(x * i)[:, i : i + 64] for i in range(64)], dim=1))


def viewed(m, x):
    return m.f[0](x.unfold(1, 64, 1))


def to_a_tensor(m, x):
    n = torch.tensor(400)
    return torch.cat([x[:, :n], x[:, :n], x[:, :n]])


def newest(m, x):
    return torch.stack([x[:, 63 - i : 511 - i] for i in range(64)], -1)


def columns_first(m, x):
    y = x.view(32, 16, 32)
    return torch.stack([y[:, i : i + 14, j : j + 27] for j in range(6) for i in range(3)], 2)


def without_the_centre(m, x):
    y = x.view(4, 64, 64)
    return torch.stack([y[:, i : i + 60, j : j + 60] for i in range(5) for j in range(5) if (i, j) != (2, 2)], 2)


OTHERS = [newest, columns_first, without_the_centre, apart, chosen, of_several, viewed, to_a_tensor]


@pytest.mark.parametrize("function", OTHERS, ids=lambda one: one.__name__)
def test_other_slices_are_left_alone(function):
    assert not found_in(function, 32, 512, title="Slices")

"""Numbers that the host reads of a tensor, to make a size, a bound or a place of them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from snippets.validation.assistant.found import find
from tests.snippets.validation.planted.seen import evidence, faults, recorded

pytestmark = pytest.mark.usefixtures("one_core")


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function, self.f = function, nn.Linear(8, 8)

    def forward(self, x, lengths):
        return self.function(self, x, lengths)


def case(function):
    return lambda: (Of(function), torch.randn(16, 12, 8), torch.arange(1, 13).repeat(2)[:16].sort().values)


def found_in(function):
    return find(*recorded(case(function)))


def by_tensors(m, x, lengths):
    mask = torch.zeros(16, 12, device=x.device)
    for i, n in enumerate(lengths):
        mask[i, :n] = 1
    return m.f(x) * mask[..., None]


def by_places(m, x, lengths):
    mask = torch.zeros(16, 12, device=x.device)
    for i in range(16):
        mask[i, : lengths[i]] = 1
    return m.f(x) * mask[..., None]


def by_list(m, x, lengths):
    mask = torch.zeros(16, 12, device=x.device)
    for i, n in enumerate(lengths.tolist()):
        mask[i, :n] = 1
    return m.f(x) * mask[..., None]


def by_numbers(m, x, lengths):
    mask = x.new_zeros(16, 12)
    for i, n in enumerate(lengths):
        mask[i, int(n) :].fill_(1)
    return m.f(x).masked_fill(mask.bool()[..., None], 0)


def in_parts(m, x, lengths):
    return m.f(x) * torch.stack([torch.cat([x.new_ones(n), x.new_zeros(12 - n)]) for n in lengths])[..., None]


def padded(m, x, lengths):
    return m.f(x) * torch.stack([F.pad(x.new_ones(n), (0, 12 - n)) for n in lengths])[..., None]


MASKS = [by_tensors, by_places, by_list, by_numbers, in_parts, padded]


@pytest.mark.parametrize("function", MASKS, ids=lambda one: one.__name__)
def test_a_mask_of_lengths_made_row_by_row_is_one_comparison_and_no_constant(function):
    changes = {one.kind: one.change for one in faults(find(*evidence(case(function), sizes=False)))}
    assert {"small-kernels", "sync", "graph-break"} == changes.keys()
    assert all("torch.arange(T, device=...) < lengths[:, None]" in change for change in changes.values())


def counted(m, x, lengths):
    groups = int(lengths[-1]) + 1
    return x.new_zeros(groups, 12, 8).index_add_(0, lengths, m.f(x))


def count(lengths):
    return lengths.max().item()


def counted_elsewhere(m, x, lengths):
    longest = count(lengths)
    return m.f(x[:, :longest])


def cut(m, x, lengths):
    return m.f(x)[:, : lengths.max()]


def predicted(m, x, lengths):
    y = m.f(x)
    return y[:, : y.detach().sigmoid().mean().mul(12).long()]


SIZES = {
    counted: "from the loader",
    counted_elsewhere: "from the loader",
    cut: "from the loader",
    predicted: "a fixed upper bound",
}


@pytest.mark.parametrize("function", SIZES, ids=lambda one: one.__name__)
def test_a_number_that_becomes_a_size_is_not_kept_a_tensor(function):
    changes = {one.kind: one.change for one in faults(find(*evidence(case(function), sizes=False)))}
    assert changes.keys() >= {"sync", "graph-break"}
    assert all(change.startswith(("take the number", "a fixed")) for change in changes.values())
    assert all(("loader" in change) is (SIZES[function] == "from the loader") for change in changes.values())


def scaled(m, x, lengths):
    scale = x.abs().max().item()
    return m.f(x) / scale


def test_a_number_that_is_no_size_is_kept_a_tensor():
    (wait,) = [one for one in faults(found_in(scaled)) if one.kind == "sync"]
    assert wait.change.startswith("keep it a tensor")


def placed(m, x, lengths):
    return m.f(x[lengths[0]])


def test_a_place_that_a_tensor_of_no_dimension_names_is_read_by_the_host():
    (wait,) = [one for one in faults(found_in(placed)) if one.kind == "sync"]
    assert wait.change.startswith("index_select")


def later_constant(m, x, lengths):
    n = lengths.max().item()
    return m.f(x) + torch.arange(n, device=x.device).mul(2).sin().exp().sqrt().log()[:1]


def early_constant(m, x, lengths):
    y = m.f(x) + torch.arange(12, device=x.device).mul(2).sin().exp().sqrt().log()[:, None]
    return y / lengths.max().item()


@pytest.mark.parametrize(("function", "times"), [(later_constant, 0), (early_constant, 1)])
def test_what_may_be_made_of_a_number_that_was_read_is_no_constant(function, times):
    assert [one.kind for one in faults(found_in(function))].count("constant") == times


def by_score(m, x, lengths):
    order = x[:, 0, 0].argsort(descending=True)
    kept = []
    while len(order):
        kept.append(order[0])
        order = order[1:][x[order[1:], 0, 1] < 0.5]
    return m.f(x)[torch.stack(kept)]


def by_mask(m, x, lengths):
    return m.f(x)[lengths > 4].sum(0)


@pytest.mark.parametrize(("function", "words"), [(by_score, "batched_nms"), (by_mask, "a weight of zero")])
def test_what_a_mask_selects_is_answered_by_a_fixed_number(function, words):
    changes = [one.change for one in faults(found_in(function)) if one.kind == "sync"]
    assert any(words in change for change in changes)


def filled(m, x, lengths):
    return x.new_ones(5, 5).sum() * m.f(x).mean() + torch.zeros_like(x[0]).sum()


def test_what_makes_a_tensor_like_another_does_not_read_it():
    trace, _ = recorded(lambda: (Of(filled), torch.randn(64, 12, 8), torch.arange(3)))
    made = {call.name: call.moved for call in trace.calls if call.name in ("new_ones", "zeros_like")}
    assert made == {"new_ones": 4 * 25, "zeros_like": 4 * 12 * 8}

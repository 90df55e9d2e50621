"""All ways compute the same, and move the bytes that the page counts."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from snippets.patterns import fusion
from snippets.patterns.fusion import (
    apart,
    backward_of_saved,
    backward_recomputing,
    each_scaled,
    forward_saving,
    gated,
    in_place,
    in_the_product,
    moved,
    scaled_together,
    statistics,
    used_again,
    used_once,
)
from snippets.validation.equivalence import check
from tests.benchmarks.captures import sections

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def randn(*shape):
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)


def test_the_sum_that_is_needed_again_is_the_same_sum():
    x, scale, shift = randn(8, 64), randn(64), randn(64)
    first, hidden = used_again(x, scale, shift)
    assert torch.equal(first, used_once(x, scale, shift)) and torch.equal(hidden, x * scale + shift)


def test_one_call_for_all_is_each_by_itself():
    tensors = [randn(4, 8) for _ in range(3)]
    assert all(map(torch.equal, each_scaled(*tensors), scaled_together(*tensors)))


def test_the_statistics_are_those_of_rows():
    x = randn(4, 64)
    total, largest, least = statistics(x)
    assert torch.equal(largest, x.max(-1).values) and torch.equal(least, x.min(-1).values)
    assert torch.allclose(total.float(), x.float().sum(-1), rtol=0.02, atol=0.05)


def test_the_epilogue_is_the_same_in_place_and_in_the_product():
    inputs = randn(32, 64), randn(48, 64), randn(48)
    exact, plain = apart(*(t.double() for t in inputs)), apart(*inputs)
    assert bool((plain == 0).any() and (plain > 0).any())
    for way in (in_place, in_the_product):
        check({"y": way(*inputs)}, {"y": plain}, {"y": exact})


def test_saved_and_computed_again_are_autograds_gradients():
    gate, up, grad = (torch.randn(16, 32, device=DEVICE, dtype=torch.float64) for _ in range(3))
    leaves = tuple(t.clone().requires_grad_() for t in (gate, up))
    y = gated(*leaves)
    right = torch.autograd.grad(y, leaves, grad)
    first, sigmoid, activated = forward_saving(gate, up)
    assert torch.allclose(first, y)
    for found in (backward_of_saved(grad, up, sigmoid, activated), backward_recomputing(grad, gate, up)):
        assert all(map(torch.allclose, found, right))


@pytest.mark.parametrize(
    ("function", "tensors", "eager", "fused"), [(used_once, 1, 6, 2), (used_again, 1, 6, 3), (statistics, 1, 3, 1)]
)
def test_bytes_in_tensors(function, tensors, eager, fused):
    with FakeTensorMode():
        x, small = torch.empty(4096, 4096), torch.empty(4096)
        inputs = (x,) if function is statistics else (x, small, small)
        _, now, least = moved(function, *inputs)
    assert now / x.nbytes == pytest.approx(eager, rel=0.01)
    assert least / x.nbytes == pytest.approx(fused, rel=0.01)


def test_the_script_prints_what_the_page_shows(script):
    assert list(sections(script(fusion.__name__).stdout)) == ["counted", "recomputed"]

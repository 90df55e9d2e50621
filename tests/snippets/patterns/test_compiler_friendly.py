"""Both sides of each rewrite compute the same, for more than the inputs that the page counts."""

from itertools import pairwise

import pytest
import torch

from snippets.patterns.compiler_friendly import TEN, rewrite
from snippets.patterns.compiler_friendly_pair import CALLS, outputs

SIZES = ((2, 8), (8, 32))


def close(one: torch.Tensor, other: torch.Tensor) -> None:
    bounds = {"rtol": 0.02, "atol": 0.02} if one.dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(other, one, **bounds)


@pytest.mark.parametrize(("rows", "width"), SIZES)
@pytest.mark.parametrize("name", TEN)
def test_both_sides_compute_the_same_at_every_call(name, rows, width):
    first, second = outputs(rewrite(name, rows, width))
    assert len(first) == len(second) == CALLS
    for one, other in zip(first, second, strict=True):
        close(one, other)


@pytest.mark.parametrize("name", TEN)
def test_the_calls_differ_so_that_a_result_kept_from_before_is_found_out(name):
    first, _ = outputs(rewrite(name))
    assert all(one.shape != other.shape or not torch.equal(one, other) for one, other in pairwise(first))


@pytest.mark.parametrize("name", TEN)
def test_captured_the_rewrite_is_still_what_the_first_side_is(name):
    def compile(function):
        return torch.compile(function, backend="eager", fullgraph=True)

    torch.compiler.reset()
    pair = rewrite(name)
    first, _ = outputs(pair)
    pair.forget()
    call, inputs = pair.after(compile)
    with torch.no_grad():
        for one, arguments in zip(first, inputs, strict=True):
            close(one, pair.common(call(*arguments)))

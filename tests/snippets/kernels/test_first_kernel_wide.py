"""Rows wider than one tile."""

import pytest

from snippets.kernels.first_kernel_wide import any_width
from tests.exercises.test_first_kernel import loops
from tests.snippets.kernels.test_first_kernel import ALL, holds, randn

INF = float("inf")


@pytest.mark.parametrize("stage", ALL[1:5])
def test_one_tile_has_a_largest_size(stage):
    with pytest.raises(Exception, match="exceeds triton maximum tensor numel"):
        stage(randn(1, 2**20 + 1))


@loops
def test_the_loop_mends_wide_rows():
    holds(any_width, randn(1, 2**20 + 1))
    holds(any_width, randn(2, 20000)[:, :19001])


@loops
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning:triton")  # numpy's, of the row that becomes NaN
@pytest.mark.parametrize("columns", (100, 20000))
def test_masked_entries(columns):
    """A tile of nothing but -inf, at the start of a row or at its end; a row of them is NaN, as in PyTorch."""
    x = randn(4, columns)
    x[0, : columns // 2], x[1, columns // 2 :], x[2, :-1], x[3] = -INF, -INF, -INF, -INF
    holds(any_width, x)
    assert any_width(x)[3].isnan().all() and not any_width(x)[:3].isnan().any()

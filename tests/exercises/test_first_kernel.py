"""The exercises of docs/pages/kernels/first-kernel.md: `python -m pytest tests/exercises --mine my_kernels.py`."""

import numpy as np
import pytest
import torch
import triton

# Triton 3.6 makes an int of an array of one number, which NumPy refuses from 2.4 on
loops = pytest.mark.skipif(
    triton.knobs.runtime.interpret
    and triton.__version__.startswith("3.6")
    and np.lib.NumpyVersion(np.__version__) >= "2.4.0",
    reason="Triton 3.6 interprets no loop over a range with NumPy 2.4",
)
GUARD = 12345.0  # what lies around a tensor, and nobody may write over


def randn(*shape: int, device: torch.device) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(device)


def surrounded(rows: int, columns: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """A contiguous (rows, columns) tensor of NaN, and the memory in whose middle it lies."""
    room = 4096
    memory = torch.full((rows * columns + 2 * room,), GUARD, device=device)
    inner = memory[room : room + rows * columns].view(rows, columns)
    return inner.fill_(float("nan")), memory


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    missing = actual.isnan() & ~expected.isnan()
    assert not missing.any(), f"{int(missing.sum())} of {missing.numel()} results are NaN, or were never written"
    torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("columns", (1, 2, 64, 1024))
def test_one_the_largest_of_each_row(mine, columns, device):
    x = randn(7, columns, device=device)
    same(mine.largest(x), x.amax(1))


def test_one_where_all_are_negative(mine, device):
    x = -1 - randn(7, 64, device=device).abs()
    same(mine.largest(x), x.amax(1))


@pytest.mark.parametrize("columns", (1, 3, 64, 1000))
def test_two_log_softmax(mine, columns, device):
    x = randn(7, columns, device=device)
    y, memory = surrounded(7, columns, device)
    mine.log_softmax(x, y)
    same(y, torch.log_softmax(x, -1))
    assert int((memory == GUARD).sum()) == memory.numel() - y.numel(), "wrote outside of the result"


def test_two_does_not_read_what_lies_behind_a_row(mine, device):
    """Nor before the next one begins: what follows is large, and would rule the maximum."""
    memory = torch.full((4096,), 1e4, device=device)
    x = memory[:300].view(3, 100).copy_(randn(3, 100, device=device))
    y, _ = surrounded(3, 100, device)
    mine.log_softmax(x, y)
    same(y, torch.log_softmax(x, -1))


def test_two_with_large_numbers(mine, device):
    x = 1000 + randn(5, 100, device=device)
    y, _ = surrounded(5, 100, device)
    mine.log_softmax(x, y)
    same(y, torch.log_softmax(x.double(), -1))


@pytest.mark.parametrize("layout", ("contiguous", "transposed", "sliced", "stepped", "expanded"))
def test_three_softmax_down_the_columns(mine, layout, device, monkeypatch):
    numbers = randn(64, 64, device=device)
    x = {
        "contiguous": numbers[:33],
        "transposed": numbers.t()[:33],
        "sliced": numbers[:33, 5:40],
        "stepped": numbers[::3, ::2],
        "expanded": numbers[:33, :1].expand(33, 7),
    }[layout]
    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "contiguous", lambda x: pytest.fail("copies x: read it where it is"))
        y = mine.column_softmax(x)
    assert y.is_contiguous() and y.shape == x.shape
    same(y, torch.softmax(x, 0))


@loops
@pytest.mark.parametrize("columns", (1, 127, 128, 129, 5000))
def test_four_logsumexp_of_rows_of_any_width(mine, columns, device):
    x = randn(5, columns, device=device)
    same(mine.logsumexp(x), torch.logsumexp(x, -1))


@loops
def test_four_with_large_numbers_in_any_tile(mine, device):
    x = randn(3, 1000, device=device)
    x[0, :10], x[1, 500:510], x[2, -10:] = 1000, 1000, 1000
    same(mine.logsumexp(x), torch.logsumexp(x.double(), -1))


@loops
def test_four_where_a_row_begins_masked(mine, device):
    x = randn(3, 1000, device=device)
    x[0, :300], x[1, 300:], x[2, :999] = float("-inf"), float("-inf"), float("-inf")
    same(mine.logsumexp(x), torch.logsumexp(x, -1))


@loops
def test_four_with_any_row_stride(mine, device):
    x = randn(8, 2000, device=device)[::2, 300:700]
    same(mine.logsumexp(x), torch.logsumexp(x, -1))


def gradients(function, x: torch.Tensor, back) -> torch.Tensor:
    x = x.clone().requires_grad_()
    back(function(x)).backward()
    return x.grad


@pytest.mark.parametrize("columns", (1, 64, 1000))
def test_five_the_gradient(mine, columns, device):
    x, weights = randn(6, columns, device=device), randn(6, columns, device=device).flip(0)
    back = lambda y: (y * weights).sum()  # noqa: E731
    same(gradients(mine.LogSoftmax.apply, x, back), gradients(lambda x: torch.log_softmax(x, -1), x, back))


@pytest.mark.parametrize("layout", ("expanded", "transposed"))
def test_five_with_a_gradient_of_any_strides(mine, layout, device):
    """That of y.sum() is one number, expanded; that of y.t() comes transposed."""
    x, weights = randn(6, 100, device=device), randn(100, 6, device=device)
    back = {"expanded": torch.sum, "transposed": lambda y: (y.t() * weights).sum()}[layout]
    same(gradients(mine.LogSoftmax.apply, x, back), gradients(lambda x: torch.log_softmax(x, -1), x, back))

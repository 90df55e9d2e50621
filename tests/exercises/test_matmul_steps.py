"""The exercises of docs/pages/kernels/matmul-steps.md: `python -m pytest tests/exercises --mine my_matmul.py`."""

import pytest
import torch
from torch import Tensor

from tests.exercises.test_first_kernel import GUARD, loops, randn, surrounded

INF = float("inf")


def close(actual: Tensor, expected: Tensor) -> None:
    missing = actual.isnan() & ~expected.isnan()
    assert not missing.any(), f"{int(missing.sum())} of {missing.numel()} results are NaN, or were never written"
    torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=1e-4)


def before_infinity(rows: int, columns: int, device: torch.device) -> Tensor:
    """An fp16 matrix; the memory behind it is inf: one number of that, even times 0, and a sum is wrong."""
    memory = torch.full((rows * columns + 4096,), INF, dtype=torch.float16, device=device)
    return memory[: rows * columns].view(rows, columns).copy_(randn(rows, columns, device=device))


@pytest.mark.parametrize(("down", "across", "group"), ((4, 3, 1), (4, 3, 2), (4, 3, 4), (5, 3, 2), (3, 4, 16)))
def test_one_the_order_of_tiles(mine, down, across, group, device):
    expected = torch.full((down, across), float("nan"), dtype=torch.float64, device=device)
    program = 0
    for first in range(0, down, group):
        for column in range(across):
            for row in range(first, min(first + group, down)):
                expected[row, column], program = program, program + 1
    close(mine.order(down, across, group, expected), expected)


@loops
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("shape", ((32, 16, 32), (33, 16, 32), (32, 17, 32), (32, 16, 33), (70, 45, 50)), ids=str)
def test_two_any_size(mine, shape, device):
    M, K, N = shape
    a, b = before_infinity(M, K, device), before_infinity(K, N, device)
    c, memory = surrounded(M, N, device)
    mine.edges(a, b, c)
    close(c, a.double() @ b.double())
    assert int((memory == GUARD).sum()) == memory.numel() - c.numel(), "wrote outside of the result"


@loops
@pytest.mark.parametrize("programs", (1, 4, 6, 9))
def test_three_any_number_of_programs(mine, programs, device):
    a, b = randn(64, 48, device=device).half(), randn(48, 96, device=device).half().flip(0)
    bias = 3 * randn(96, device=device)
    close(mine.persistent_bias(a, b, bias, programs), (a.double() @ b.double() + bias).relu())

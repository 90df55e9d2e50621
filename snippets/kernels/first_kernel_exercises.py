"""Five exercises from "Your first kernel". Copy this file, write the kernels, and let the tests judge them:

    cp snippets/kernels/first_kernel_exercises.py my_kernels.py
    python -m pytest tests/exercises --mine my_kernels.py

`-k one` tests the first alone. Where there is no GPU, the tests use Triton's interpreter. Results begin as NaN: what
your kernel does not write stays NaN.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def nan(*shape: int, like: Tensor) -> Tensor:
    return torch.full(shape, float("nan"), dtype=torch.float32, device=like.device)


# --8<-- [start:one]
@triton.jit
def largest_kernel(x_ptr, result_ptr, columns, BLOCK: tl.constexpr):
    pass  # yours: one program a row, one number a row to store


def largest(x: Tensor) -> Tensor:
    """One: the largest number of each row. x: (rows, columns) fp32, contiguous; columns is a power of two."""
    rows, columns = x.shape
    result = nan(rows, like=x)
    largest_kernel[(rows,)](x, result, columns, BLOCK=columns)
    return result


# --8<-- [end:one]


# --8<-- [start:two]
@triton.jit
def log_softmax_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    pass  # yours: BLOCK is at least columns, and what lies behind a row belongs to somebody else


def log_softmax(x: Tensor, y: Tensor) -> None:
    """Two: y = x - max - log(sum(exp(x - max))). Both (rows, columns) fp32, contiguous; any number of columns."""
    rows, columns = x.shape
    log_softmax_kernel[(rows,)](x, y, columns, BLOCK=triton.next_power_of_2(columns))


# --8<-- [end:two]


# --8<-- [start:three]
@triton.jit
def column_softmax_kernel(
    x_ptr, y_ptr, row_stride, column_stride, rows, columns,
    BLOCK: tl.constexpr,
):  # fmt: skip
    pass  # yours: one program a column; BLOCK is at least rows


def column_softmax(x: Tensor) -> Tensor:
    """Three: softmax down each column, `torch.softmax(x, 0)`, without a copy. x: (rows, columns) fp32, any strides.

    The result is contiguous.
    """
    rows, columns = x.shape
    y = nan(rows, columns, like=x)
    block = triton.next_power_of_2(rows)
    column_softmax_kernel[(columns,)](x, y, x.stride(0), x.stride(1), rows, columns, BLOCK=block)
    return y


# --8<-- [end:three]


# --8<-- [start:four]
@triton.jit
def logsumexp_kernel(x_ptr, result_ptr, x_stride, columns, BLOCK: tl.constexpr):
    pass  # yours: a loop over tiles of BLOCK columns, fewer than a row has


def logsumexp(x: Tensor) -> Tensor:
    """Four: log(sum(exp(x))) of each row, without overflow. x: (rows, columns) fp32, any row stride, any width.

    The first numbers of a row may all be -inf, as under a mask.
    """
    rows, columns = x.shape
    result = nan(rows, like=x)
    logsumexp_kernel[(rows,)](x, result, x.stride(0), columns, BLOCK=128)
    return result


# --8<-- [end:four]


# --8<-- [start:five]
@triton.jit
def log_softmax_gradient_kernel(
    dy_ptr, y_ptr, dx_ptr, dy_row_stride, dy_column_stride, columns,
    BLOCK: tl.constexpr,
):  # fmt: skip
    pass  # yours: dx = dy - exp(y) * sum(dy), the sum over the row


class LogSoftmax(torch.autograd.Function):
    """Five: the backward of exercise two."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        y = torch.log_softmax(x, -1)  # PyTorch's, so that this exercise needs no other
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        rows, columns = y.shape
        dx = nan(rows, columns, like=y)
        # yours: launch it; dy has the shape of y, and any strides
        return dx


# --8<-- [end:five]


if __name__ == "__main__":
    print("Copy this file, write the kernels, and run: python -m pytest tests/exercises --mine my_kernels.py")

"""One solution to each exercise of "Your first kernel". Yours may look different: the tests decide."""

import torch
import triton
import triton.language as tl
from torch import Tensor


def nan(*shape: int, like: Tensor) -> Tensor:
    return torch.full(shape, float("nan"), dtype=torch.float32, device=like.device)


# --8<-- [start:one]
@triton.jit
def largest_kernel(
    x_ptr, result_ptr, columns,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + cols)
    tl.store(result_ptr + row, tl.max(x, axis=0))  # a scalar goes to one address


# --8<-- [end:one]


def largest(x: Tensor) -> Tensor:
    rows, columns = x.shape
    result = nan(rows, like=x)
    largest_kernel[(rows,)](x, result, columns, BLOCK=columns)
    return result


# --8<-- [start:two]
@triton.jit
def log_softmax_kernel(
    x_ptr, y_ptr, columns,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    inside = cols < columns
    x_ptr += row * columns
    x = tl.load(x_ptr + cols, mask=inside, other=float("-inf"))
    shifted = x - tl.max(x, axis=0)
    total = tl.sum(tl.exp(shifted), axis=0)  # outside: exp(-inf), which is 0
    y_ptr += row * columns
    tl.store(y_ptr + cols, shifted - tl.log(total), mask=inside)


# --8<-- [end:two]


def log_softmax(x: Tensor, y: Tensor) -> None:
    rows, columns = x.shape
    log_softmax_kernel[(rows,)](x, y, columns, BLOCK=triton.next_power_of_2(columns))


# --8<-- [start:three]
@triton.jit
def column_softmax_kernel(
    x_ptr, y_ptr, row_stride, column_stride, rows, columns,
    BLOCK: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0).to(tl.int64)
    down = tl.arange(0, BLOCK).to(tl.int64)  # multiplied by a stride, too
    inside = down < rows
    x_ptr += down * row_stride + column * column_stride
    x = tl.load(x_ptr, mask=inside, other=float("-inf"))
    exps = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + down * columns + column, exps / tl.sum(exps, axis=0), mask=inside)


# --8<-- [end:three]


def column_softmax(x: Tensor) -> Tensor:
    rows, columns = x.shape
    y = nan(rows, columns, like=x)
    block = triton.next_power_of_2(rows)
    column_softmax_kernel[(columns,)](x, y, x.stride(0), x.stride(1), rows, columns, BLOCK=block)
    return y


# --8<-- [start:four]
@triton.jit
def logsumexp_kernel(
    x_ptr, result_ptr, x_stride, columns,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    high = -3.4028234663852886e38
    total = 0.0
    for start in range(0, columns, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x_tile = x_ptr + row * x_stride + cols
        x = tl.load(x_tile, mask=cols < columns, other=float("-inf"))
        higher = tl.maximum(high, tl.max(x, axis=0))
        total = total * tl.exp(high - higher)
        total += tl.sum(tl.exp(x - higher), axis=0)
        high = higher
    tl.store(result_ptr + row, high + tl.log(total))


# --8<-- [end:four]


def logsumexp(x: Tensor) -> Tensor:
    rows, columns = x.shape
    result = nan(rows, like=x)
    logsumexp_kernel[(rows,)](x, result, x.stride(0), columns, BLOCK=128)
    return result


# --8<-- [start:five]
@triton.jit
def log_softmax_gradient_kernel(
    dy_ptr, y_ptr, dx_ptr, dy_row_stride, dy_column_stride, columns,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    inside = cols < columns
    dy_ptr += row * dy_row_stride + cols * dy_column_stride
    dy = tl.load(dy_ptr, mask=inside, other=0.0)
    y = tl.load(y_ptr + row * columns + cols, mask=inside, other=0.0)
    dx = dy - tl.exp(y) * tl.sum(dy, axis=0)
    tl.store(dx_ptr + row * columns + cols, dx, mask=inside)


class LogSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        y = torch.log_softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        rows, columns = y.shape
        dx = nan(rows, columns, like=y)
        block = triton.next_power_of_2(columns)
        strides = dy.stride(0), dy.stride(1)
        log_softmax_gradient_kernel[(rows,)](dy, y, dx, *strides, columns, BLOCK=block)
        return dx


# --8<-- [end:five]


if __name__ == "__main__":
    x = torch.randn(3, 4, device="cuda" if torch.cuda.is_available() else "cpu")
    print(largest(x).cpu() - x.amax(1).cpu())

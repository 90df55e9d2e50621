"""Softmax over rows of any length, anywhere in memory: a mask, strides, and offsets of 64 bits."""

import torch
import triton
import triton.language as tl
from torch import Tensor


# --8<-- [start:any-length]
@triton.jit
def masked_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    inside = cols < columns
    x = tl.load(x_ptr + row * columns + cols, mask=inside, other=float("-inf")).to(tl.float32)
    exps = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * columns + cols, exps / tl.sum(exps, axis=0), mask=inside)


def any_length(x: Tensor) -> Tensor:
    rows, columns = x.shape
    y = torch.empty_like(x)
    masked_kernel[(rows,)](x, y, columns, BLOCK=triton.next_power_of_2(columns))
    return y


# --8<-- [end:any-length]


# --8<-- [start:any-layout]
@triton.jit
def strided_kernel(x_ptr, y_ptr, x_stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    inside = cols < columns
    x = tl.load(x_ptr + row * x_stride + cols, mask=inside, other=float("-inf")).to(tl.float32)
    exps = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * columns + cols, exps / tl.sum(exps, axis=0), mask=inside)


def as_rows(x: Tensor) -> Tensor:
    """Any tensor as rows whose columns are neighbours in memory: a view where there is one, else a copy."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


def any_layout(x: Tensor) -> Tensor:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)  # empty_like would take over the strides of x
    x = as_rows(x)
    rows, columns = x.shape
    strided_kernel[(rows,)](x, y, x.stride(0), columns, BLOCK=triton.next_power_of_2(columns))
    return y


# --8<-- [end:any-layout]


@triton.jit
def row_kernel(x_ptr, y_ptr, x_stride, columns, BLOCK: tl.constexpr):
    # --8<-- [start:any-offset]
    row = tl.program_id(0).to(tl.int64)  # and so is every product with it
    # --8<-- [end:any-offset]
    cols = tl.arange(0, BLOCK)
    inside = cols < columns
    x = tl.load(x_ptr + row * x_stride + cols, mask=inside, other=float("-inf")).to(tl.float32)
    exps = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * columns + cols, exps / tl.sum(exps, axis=0), mask=inside)


def any_offset(x: Tensor) -> Tensor:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    x = as_rows(x)
    rows, columns = x.shape
    row_kernel[(rows,)](x, y, x.stride(0), columns, BLOCK=triton.next_power_of_2(columns))
    return y


# --8<-- [start:offsets]
@triton.jit
def offset_kernel(offset_ptr, stride):
    row = tl.program_id(0)
    tl.store(offset_ptr + row * 2, (row * stride).to(tl.int64))
    tl.store(offset_ptr + row * 2 + 1, row.to(tl.int64) * stride)


# --8<-- [end:offsets]

"""Softmax over wide rows: more warps, then a loop over tiles."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from snippets.kernels.first_kernel_rows import as_rows, row_kernel


# --8<-- [start:more-warps]
def warps_for(block: int) -> int:
    """8 numbers a thread and more: a warp has 32 threads, and a program at most 1024 on an NVIDIA GPU."""
    return min(max(block // 1024, 4), 16)


def more_warps(x: Tensor) -> Tensor:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    x = as_rows(x)
    rows, columns = x.shape
    block = triton.next_power_of_2(columns)
    row_kernel[(rows,)](x, y, x.stride(0), columns, BLOCK=block, num_warps=warps_for(block))
    return y


# --8<-- [end:more-warps]


# --8<-- [start:any-width]
@triton.jit
def wide_kernel(x_ptr, y_ptr, x_stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    high = -3.4028234663852886e38  # the lowest fp32: had it been -inf, -inf - -inf would be NaN
    total = 0.0
    for start in range(0, columns, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_stride + cols, mask=cols < columns, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(high, tl.max(x, axis=0))
        total = total * tl.exp(high - higher) + tl.sum(tl.exp(x - higher), axis=0)
        high = higher
    for start in range(0, columns, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_stride + cols, mask=cols < columns, other=float("-inf")).to(tl.float32)
        tl.store(y_ptr + row * columns + cols, tl.exp(x - high) / total, mask=cols < columns)


WIDEST_TILE = 16384


def any_width(x: Tensor) -> Tensor:
    if x.shape[-1] <= WIDEST_TILE:
        return more_warps(x)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    x = as_rows(x)
    rows, columns = x.shape
    wide_kernel[(rows,)](x, y, x.stride(0), columns, BLOCK=8192, num_warps=16)
    return y


# --8<-- [end:any-width]

"""Softmax with its backward, as autograd calls it."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from snippets.kernels.first_kernel_rows import as_rows
from snippets.kernels.first_kernel_wide import any_width, warps_for


# --8<-- [start:gradient]
@triton.jit
def gradient_kernel(dy_ptr, y_ptr, dx_ptr, dy_stride, columns, BLOCK: tl.constexpr):
    """dx = y * (dy - sum(dy * y)), the sum over the row."""
    row = tl.program_id(0).to(tl.int64)
    sums = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        dy = tl.load(dy_ptr + row * dy_stride + cols, mask=cols < columns, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + row * columns + cols, mask=cols < columns, other=0.0).to(tl.float32)
        sums += dy * y
    total = tl.sum(sums, axis=0)
    for start in range(0, columns, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        dy = tl.load(dy_ptr + row * dy_stride + cols, mask=cols < columns, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + row * columns + cols, mask=cols < columns, other=0.0).to(tl.float32)
        tl.store(dx_ptr + row * columns + cols, y * (dy - total), mask=cols < columns)


# --8<-- [end:gradient]


# --8<-- [start:with-backward]
class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        y = any_width(x)
        ctx.save_for_backward(y)  # not x: the gradient needs y alone
        return y

    @staticmethod
    def backward(ctx, dy: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        dx = torch.empty_like(y)
        dy = as_rows(dy)  # what comes back may have any strides: that of y.sum() is one number, expanded
        rows, columns = dy.shape
        block = min(triton.next_power_of_2(columns), 8192)
        gradient_kernel[(rows,)](dy, y, dx, dy.stride(0), columns, BLOCK=block, num_warps=warps_for(block))
        return dx


def with_backward(x: Tensor) -> Tensor:
    return Softmax.apply(x)


# --8<-- [end:with-backward]

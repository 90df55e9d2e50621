"""One Triton kernel forward and one backward for GELU, its approximations and SiLU. On a CPU set TRITON_INTERPRET=1."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


# --8<-- [start:triton]
@triton.jit
def _activate(x, KIND: tl.constexpr):
    """f(x) and its slope; the compiler drops the one that is not used."""
    if KIND == "gelu":
        share = 0.5 * (1 + tl.erf(x * 0.7071067811865476))
        slope = share + x * tl.exp(-0.5 * x * x) * 0.3989422804014327
    else:  # x * sigmoid(u), and du is the slope of u
        u, du = x, 1.0
        if KIND == "quick-gelu":
            u, du = 1.702 * x, 1.702
        if KIND == "gelu-tanh":  # (1 + tanh(v)) / 2 is sigmoid(2 v)
            u = x * (1.5957691216057308 + 0.07135481282553304 * x * x)
            du = 1.5957691216057308 + 0.2140644384766 * x * x
        share = tl.sigmoid(u)
        slope = share + x * share * tl.sigmoid(-u) * du  # 1 - share would be the rounding of share, for a large x
    return x * share, slope


@triton.jit
def _forward_kernel(x_ptr, y_ptr, total, KIND: tl.constexpr, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places, mask=places < total).to(tl.float32)
    y, _ = _activate(x, KIND)
    tl.store(y_ptr + places, y, mask=places < total)


@triton.jit
def _backward_kernel(dy_ptr, x_ptr, dx_ptr, total, KIND: tl.constexpr, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    dy = tl.load(dy_ptr + places, mask=places < total).to(tl.float32)
    x = tl.load(x_ptr + places, mask=places < total).to(tl.float32)
    _, slope = _activate(x, KIND)
    tl.store(dx_ptr + places, dy * slope, mask=places < total)


class Activation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kind: str) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)  # and nothing else: the slope is computed again
        ctx.kind, y = kind, torch.empty_like(x)
        _forward_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), KIND=kind, BLOCK=1024)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (x,), dy = ctx.saved_tensors, dy.contiguous()
        dx = torch.empty_like(x)
        _backward_kernel[(triton.cdiv(x.numel(), 1024),)](dy, x, dx, x.numel(), KIND=ctx.kind, BLOCK=1024)
        return dx, None


def gelu_triton(x: Tensor) -> Tensor:
    return Activation.apply(x, "gelu")


# --8<-- [end:triton]


def gelu_tanh_triton(x: Tensor) -> Tensor:
    return Activation.apply(x, "gelu-tanh")


def silu_triton(x: Tensor) -> Tensor:
    return Activation.apply(x, "silu")


def quick_gelu_triton(x: Tensor) -> Tensor:
    return Activation.apply(x, "quick-gelu")

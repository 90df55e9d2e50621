"""GELU, its approximations, SiLU and SwiGLU, each at several levels.

Run `python -m snippets.patterns.compare_levels swiglu` to check and time the levels of one.
"""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

from typing import Any

import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from kernels.swiglu import swiglu
from kernels.swiglu_cuda import swiglu as swiglu_cuda
from snippets.patterns.levels import Component, Shape, compiled, scripted


# --8<-- [start:gelu]
def gelu_written(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / 1.4142135623730951))


def gelu_native(x: Tensor) -> Tensor:
    return F.gelu(x)


# --8<-- [end:gelu]


# --8<-- [start:gelu-tanh]
def gelu_tanh_written(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def gelu_tanh_native(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


# --8<-- [end:gelu-tanh]


# --8<-- [start:silu]
def silu_written(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def silu_native(x: Tensor) -> Tensor:
    return F.silu(x)


# --8<-- [end:silu]


# --8<-- [start:quick-gelu]
def quick_gelu_written(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def quick_gelu_native(x: Tensor) -> Tensor:
    return F.silu(1.702 * x) / 1.702


# --8<-- [end:quick-gelu]


# --8<-- [start:swiglu]
def swiglu_written(gate: Tensor, up: Tensor) -> Tensor:
    return gate * torch.sigmoid(gate) * up


def swiglu_native(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


# --8<-- [end:swiglu]


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


def inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """As before an MLP's activation: most of them within a few units of zero."""
    return {"x": (2 * torch.randn(shape, device=device)).to(dtype)}


def gated(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    return {name: (2 * torch.randn(shape, device=device)).to(dtype) for name in ("gate", "up")}


SHAPES = {"tiny": (4, 256), "small": (256, 1024), "typical": (8192, 4096), "large": (8192, 16384)}

GELU = Component(
    name="gelu",
    levels={
        0: lambda: gelu_written,
        1: lambda: gelu_native,
        2: lambda: scripted(gelu_written),
        3: lambda: compiled(gelu_native),
        4: lambda: gelu_triton,
    },
    reference=gelu_native,
    inputs=inputs,
    gradients=("x",),
    sizes=("rows", "columns"),
    shapes=SHAPES,
)
GELU_TANH = Component(
    name="gelu_tanh",
    levels={
        0: lambda: gelu_tanh_written,
        1: lambda: gelu_tanh_native,
        2: lambda: scripted(gelu_tanh_written),
        3: lambda: compiled(gelu_tanh_native),
        4: lambda: gelu_tanh_triton,
    },
    reference=gelu_tanh_native,
    inputs=inputs,
    gradients=("x",),
    sizes=("rows", "columns"),
    shapes=SHAPES,
)
SILU = Component(
    name="silu",
    levels={
        0: lambda: silu_written,
        1: lambda: silu_native,
        2: lambda: scripted(silu_written),
        3: lambda: compiled(silu_native),
        4: lambda: silu_triton,
    },
    reference=silu_native,
    inputs=inputs,
    gradients=("x",),
    sizes=("rows", "columns"),
    shapes=SHAPES,
)
QUICK_GELU = Component(
    name="quick_gelu",
    levels={
        0: lambda: quick_gelu_written,
        1: lambda: quick_gelu_native,
        2: lambda: scripted(quick_gelu_written),
        3: lambda: compiled(quick_gelu_native),
        4: lambda: quick_gelu_triton,
    },
    reference=quick_gelu_native,
    inputs=inputs,
    gradients=("x",),
    sizes=("rows", "columns"),
    shapes=SHAPES,
)
SWIGLU = Component(
    name="swiglu",
    levels={
        0: lambda: swiglu_written,
        1: lambda: swiglu_native,
        2: lambda: scripted(swiglu_written),
        3: lambda: compiled(swiglu_native),
        4: lambda: swiglu,
        5: lambda: swiglu_cuda,
    },
    reference=swiglu_native,
    inputs=gated,
    gradients=("gate", "up"),
    sizes=("rows", "columns"),
    shapes=SHAPES,
)
COMPONENTS = (GELU, GELU_TANH, SILU, QUICK_GELU, SWIGLU)

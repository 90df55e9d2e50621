"""GELU exact and by tanh, SiLU and its kin, and SwiGLU, each at several levels.

Run `python -m snippets.patterns.compare_levels swiglu` to check and time the levels of one.
"""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

import torch.nn.functional as F
from torch import Tensor

from kernels.swiglu import swiglu
from snippets.patterns.levels import Component, Shape, compiled, scripted


# --8<-- [start:gelu]
def gelu_written(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / 1.4142135623730951))


def gelu_native(x: Tensor) -> Tensor:
    return F.gelu(x)


# --8<-- [end:gelu]


# --8<-- [start:gelu-tanh]
def gelu_tanh_written(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))


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


def one(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    return {"x": torch.randn(shape, device=device).to(dtype)}


def two(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    return {name: torch.randn(shape, device=device).to(dtype) for name in ("gate", "up")}


SHAPES = {"tiny": (4, 256), "small": (256, 1024), "typical": (4096, 14336), "large": (16384, 14336)}
GELU = Component(
    name="gelu",
    levels={
        0: lambda: gelu_written,
        1: lambda: gelu_native,
        2: lambda: scripted(gelu_written),
        3: lambda: compiled(gelu_native),
    },
    reference=gelu_native,
    inputs=one,
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
    },
    reference=gelu_tanh_native,
    inputs=one,
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
    },
    reference=silu_native,
    inputs=one,
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
        3: lambda: compiled(quick_gelu_written),
    },
    reference=quick_gelu_written,
    inputs=one,
    gradients=("x",),
    sizes=("rows", "columns"),
    shapes=SHAPES,
)
# --8<-- [start:levels]
SWIGLU = Component(
    name="swiglu",
    levels={
        0: lambda: swiglu_written,
        1: lambda: swiglu_native,
        2: lambda: scripted(swiglu_written),
        3: lambda: compiled(swiglu_native),
        4: lambda: swiglu,
    },
    reference=swiglu_native,
    inputs=two,
    gradients=("gate", "up"),
    sizes=("rows", "columns"),
    shapes=SHAPES,
)
# --8<-- [end:levels]
COMPONENTS = (GELU, GELU_TANH, SILU, QUICK_GELU, SWIGLU)

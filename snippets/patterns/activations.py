"""GELU, its approximations, SiLU and SwiGLU, each at several levels.

Run `python -m snippets.patterns.compare_levels swiglu` to check and time the levels of one.
"""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported


import torch.nn.functional as F
from torch import Tensor

from kernels.swiglu import swiglu
from kernels.swiglu_cuda import swiglu as swiglu_cuda
from snippets.patterns.activations_forms import (
    gelu_native,
    gelu_tanh_native,
    gelu_tanh_written,
    gelu_written,
    quick_gelu_native,
    quick_gelu_written,
    silu_native,
    silu_written,
)
from snippets.patterns.activations_triton import gelu_tanh_triton, gelu_triton, quick_gelu_triton, silu_triton
from snippets.patterns.levels import Component, Shape, compiled, scripted


# --8<-- [start:swiglu]
def swiglu_written(gate: Tensor, up: Tensor) -> Tensor:
    return gate * torch.sigmoid(gate) * up


def swiglu_native(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


# --8<-- [end:swiglu]


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

"""LayerNorm, RMSNorm, and LayerNorm with a GELU behind it, each at several levels.

Run `python -m snippets.patterns.compare_levels layer_norm_gelu` to check and time the levels of one.
"""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

import torch.nn.functional as F
from torch import Tensor

from kernels.layer_norm import layer_norm
from kernels.layer_norm_gelu import layer_norm_gelu
from kernels.layer_norm_gelu_cuda import layer_norm_gelu as layer_norm_gelu_cuda
from kernels.rms_norm import rms_norm
from snippets.patterns.levels import Component, Shape, compiled, scripted

EPS = 1e-5


# --8<-- [start:layer-norm]
def layer_norm_written(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-5) * weight + bias


def layer_norm_native(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)


# --8<-- [end:layer-norm]


# --8<-- [start:rms-norm]
def rms_norm_written(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    mean_square = wide.pow(2).mean(-1, keepdim=True)
    return weight * (wide * torch.rsqrt(mean_square + 1e-5)).to(x.dtype)


def rms_norm_native(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, 1e-5)


# --8<-- [end:rms-norm]


# --8<-- [start:layer-norm-gelu]
def layer_norm_gelu_written(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    z = layer_norm_written(x, weight, bias)
    return 0.5 * z * (1 + torch.erf(z / 1.4142135623730951))


def layer_norm_gelu_native(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5))


# --8<-- [end:layer-norm-gelu]


def inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """Rows with a mean that it matters to subtract, and weights around one."""
    rows, columns = shape
    made = {"x": (rows, columns), "weight": (columns,), "bias": (columns,)}
    return {name: (torch.randn(size, device=device) + 1).to(dtype) for name, size in made.items()}


def without_bias(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    return {name: t for name, t in inputs(shape, dtype, device).items() if name != "bias"}


SHAPES = {"tiny": (4, 256), "small": (256, 1024), "typical": (8192, 4096), "large": (8192, 16384)}

# --8<-- [start:levels]
LAYER_NORM = Component(
    name="layer_norm",
    levels={
        0: lambda: layer_norm_written,
        1: lambda: layer_norm_native,
        2: lambda: scripted(layer_norm_written),
        3: lambda: compiled(layer_norm_native),
        4: lambda: layer_norm,
    },
    reference=layer_norm_native,
    inputs=inputs,
    gradients=("x", "weight", "bias"),
    sizes=("rows", "columns"),
    shapes=SHAPES,
)
# --8<-- [end:levels]
RMS_NORM = Component(
    name="rms_norm",
    levels={
        0: lambda: rms_norm_written,
        1: lambda: rms_norm_native,
        2: lambda: scripted(rms_norm_written),
        3: lambda: compiled(rms_norm_native),
        4: lambda: lambda x, weight: rms_norm(x, weight, EPS),
    },
    reference=rms_norm_native,
    inputs=without_bias,
    gradients=("x", "weight"),
    sizes=("rows", "columns"),
    shapes=SHAPES,
)
LAYER_NORM_GELU = Component(
    name="layer_norm_gelu",
    levels={
        0: lambda: layer_norm_gelu_written,
        1: lambda: layer_norm_gelu_native,
        2: lambda: scripted(layer_norm_gelu_written),
        3: lambda: compiled(layer_norm_gelu_native),
        4: lambda: layer_norm_gelu,
        5: lambda: layer_norm_gelu_cuda,
    },
    reference=layer_norm_gelu_native,
    inputs=inputs,
    gradients=("x", "weight", "bias"),
    sizes=("rows", "columns"),
    shapes=SHAPES,
)
COMPONENTS = (LAYER_NORM, RMS_NORM, LAYER_NORM_GELU)

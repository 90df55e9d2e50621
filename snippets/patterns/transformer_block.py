"""A transformer block assembled from parts, each as first written, as PyTorch has it, or as a kernel of one's own.

Run `python -m snippets.patterns.compare_levels block` to check and time the block at each level.
"""

import math
import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

import torch.nn.functional as F
from torch import Tensor

from kernels.add_rms_norm import add_rms_norm
from kernels.rms_norm import rms_norm
from kernels.rope import rope
from kernels.swiglu import swiglu
from snippets.patterns.levels import Component, Function, Shape, compiled, scripted
from snippets.patterns.transformer_block_eager import (
    HEAD,
    Parts,
    assembled,
    attend_native,
    native,
    project_native,
    written,
)


# --8<-- [start:kernels]
def norm_kernel(x: Tensor, weight: Tensor) -> Tensor:
    return rms_norm(x, weight, 1e-5)


def add_norm_kernel(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return add_rms_norm(x, residual, weight, 1e-5)


def gated_kernel(x: Tensor, weight: Tensor) -> Tensor:
    return swiglu(F.linear(x, weight))  # of both halves at once, as is its gradient


def with_kernels() -> Function:
    return assembled(Parts(norm_kernel, add_norm_kernel, project_native, rope, attend_native, gated_kernel))


# --8<-- [end:kernels]


def block_inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """Scores that tell tokens apart, and parts that add about as much to x as it is large."""
    batch, tokens, width = shape
    drawn = {
        "x": torch.randn(batch, tokens, width, device=device),
        "norm_1": torch.rand(width, device=device) + 0.5,
        "qkv": matrix(3 * width, width, device),
        "out": matrix(width, width, device),
        "norm_2": torch.rand(width, device=device) + 0.5,
        "gate_up": matrix(8 * width, width, device),
        "down": matrix(width, 4 * width, device),
        "cos": angles(tokens, device).cos(),
        "sin": angles(tokens, device).sin(),
    }
    return {name: t.to(dtype) for name, t in drawn.items()}


def attend_inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """Heads as the product leaves them in memory: one token after the other."""
    batch, tokens, width = shape
    drawn = torch.randn(3, batch, tokens, width // HEAD, HEAD, device=device).to(dtype).transpose(2, 3)
    return dict(zip("qkv", drawn, strict=True))


def matrix(rows: int, columns: int, device: torch.device) -> Tensor:
    return torch.randn(rows, columns, device=device) * 1.5 / math.sqrt(columns)


def angles(tokens: int, device: torch.device) -> Tensor:
    """(1, tokens, 128): those of a head's pairs, twice."""
    half = torch.arange(tokens, device=device)[:, None] * 10000.0 ** (-torch.arange(0, HEAD, 2, device=device) / HEAD)
    return torch.cat((half, half), -1)[None]


SIZES = ("batch", "tokens", "width")
SHAPES = {"tiny": (1, 16, 256), "small": (1, 128, 512), "typical": (4, 2048, 2048), "large": (2, 4096, 4096)}

BLOCK = Component(
    name="block",
    levels={
        0: lambda: written(),
        1: lambda: native(),
        2: lambda: scripted(written()),
        3: lambda: compiled(native()),
        4: lambda: with_kernels(),
    },
    reference=native(),
    inputs=block_inputs,
    gradients=("x", "norm_1", "qkv", "out", "norm_2", "gate_up", "down"),
    sizes=("batch", "tokens", "width"),
    shapes=SHAPES,
    yardstick=0,  # attention written out rounds its scores, which one kernel does not
)
COMPONENTS = (BLOCK,)

"""A transformer block assembled from parts, each as first written, as PyTorch has it, or as a kernel of one's own.

Run `python -m snippets.patterns.compare_levels block` to check and time the block at each level.
"""

import math
import os
from collections.abc import Callable
from typing import NamedTuple

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

HEAD = 128


# --8<-- [start:block]
class Parts(NamedTuple):
    """What a block is made of, beside two products that are the same everywhere.

    Attributes:
        norm: (x, weight) -> normed.
        add_norm: (x, residual, weight) -> the norm of their sum, and the sum.
        project: (x, weight) -> q, k and v, each (batch, heads, tokens, 128).
        rotate: (q, k, cos, sin) -> q and k.
        attend: (q, k, v) -> mixed, causal.
        gated: (x, weight) -> hidden; the weight is that of the gate, and below it that of the other half.
    """

    norm: Callable[[Tensor, Tensor], Tensor]
    add_norm: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    project: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
    rotate: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    gated: Callable[[Tensor, Tensor], Tensor]


def assembled(parts: Parts) -> Function:
    """The block: x (batch, tokens, width) to the same shape, as in Llama."""
    norm, add_norm, project, rotate, attend, gated = parts

    def block(
        x: Tensor,
        norm_1: Tensor,
        qkv: Tensor,
        out: Tensor,
        norm_2: Tensor,
        gate_up: Tensor,
        down: Tensor,
        cos: Tensor,
        sin: Tensor,
    ) -> Tensor:
        q, k, v = project(norm(x, norm_1), qkv)
        q, k = rotate(q, k, cos, sin)
        mixed = F.linear(attend(q, k, v).transpose(1, 2).flatten(2), out)
        normed, h = add_norm(mixed, x, norm_2)
        return h + F.linear(gated(normed, gate_up), down)

    return block


# --8<-- [end:block]


# --8<-- [start:written]
def norm_written(x: Tensor, weight: Tensor) -> Tensor:
    mean_square = x.float().pow(2).mean(-1, keepdim=True)
    return weight * (x.float() * torch.rsqrt(mean_square + 1e-5)).to(x.dtype)


def add_norm_written(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    h = x + residual
    return norm_written(h, weight), h


def project_written(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = weight.chunk(3)
    return (
        F.linear(x, q).unflatten(-1, (-1, 128)).transpose(1, 2),
        F.linear(x, k).unflatten(-1, (-1, 128)).transpose(1, 2),
        F.linear(x, v).unflatten(-1, (-1, 128)).transpose(1, 2),
    )


def rotate_half(t: Tensor) -> Tensor:
    first, second = t.chunk(2, -1)
    return torch.cat((-second, first), -1)


def rotate_written(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = cos[:, None], sin[:, None]
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def attend_written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) / 128**0.5
    future = torch.ones(scores.shape[-2], scores.shape[-1], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(-1) @ v


def gated_written(x: Tensor, weight: Tensor) -> Tensor:
    gate, up = weight.chunk(2)
    gate = F.linear(x, gate)
    return gate * torch.sigmoid(gate) * F.linear(x, up)


def written() -> Function:
    return assembled(
        Parts(norm_written, add_norm_written, project_written, rotate_written, attend_written, gated_written)
    )


# --8<-- [end:written]


# --8<-- [start:native]
def norm_native(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, 1e-5)


def add_norm_native(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    h = x + residual
    return norm_native(h, weight), h


def project_native(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = F.linear(x, weight).unflatten(-1, (3, -1, 128)).permute(2, 0, 3, 1, 4).unbind()
    return q, k, v


def attend_native(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def gated_native(x: Tensor, weight: Tensor) -> Tensor:
    gate, up = F.linear(x, weight).chunk(2, -1)
    return F.silu(gate) * up


def native() -> Function:
    """PyTorch has no rotation: that part stays as it is written."""
    return assembled(Parts(norm_native, add_norm_native, project_native, rotate_written, attend_native, gated_native))


# --8<-- [end:native]


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


# ---- inputs ---------------------------------------------------------------------------------------------------------


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


def matrix(rows: int, columns: int, device: torch.device) -> Tensor:
    return torch.randn(rows, columns, device=device) * 1.5 / math.sqrt(columns)


def angles(tokens: int, device: torch.device) -> Tensor:
    """(1, tokens, 128): those of a head's pairs, twice."""
    half = torch.arange(tokens, device=device)[:, None] * 10000.0 ** (-torch.arange(0, HEAD, 2, device=device) / HEAD)
    return torch.cat((half, half), -1)[None]


def norm_inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    return {name: t for name, t in add_norm_inputs(shape, dtype, device).items() if name != "residual"}


def add_norm_inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    return {
        "x": torch.randn(shape, device=device).to(dtype),
        "residual": torch.randn(shape, device=device).to(dtype),
        "weight": (torch.rand(shape[-1], device=device) + 0.5).to(dtype),
    }


def project_inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    x = torch.randn(shape, device=device).to(dtype)
    return {"x": x, "weight": matrix(3 * shape[-1], shape[-1], device).to(dtype)}


def gated_inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    x = torch.randn(shape, device=device).to(dtype)
    return {"x": x, "weight": matrix(8 * shape[-1], shape[-1], device).to(dtype)}


def attend_inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """Heads as the product leaves them in memory: one token after the other."""
    batch, tokens, width = shape
    drawn = torch.randn(3, batch, tokens, width // HEAD, HEAD, device=device).to(dtype).transpose(2, 3)
    return dict(zip("qkv", drawn, strict=True))


def rotate_inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    given, of = attend_inputs(shape, dtype, device), angles(shape[1], device)
    return {"q": given["q"], "k": given["k"], "cos": of.cos().to(dtype), "sin": of.sin().to(dtype)}


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


def part(name: str, functions: tuple[Function, ...], inputs: Callable, gradients: tuple[str, ...]) -> Component:
    """One part alone: written, native, compiled, and where there is one, the kernel."""
    first, second, *kernel = functions
    levels: dict[int, Callable[[], Function]] = {0: lambda: first, 1: lambda: second, 3: lambda: compiled(second)}
    if kernel:
        levels[4] = lambda: kernel[0]
    return Component(name, levels, second, inputs, gradients, SIZES, SHAPES, yardstick=0)


PARTS = (
    part("norm", (norm_written, norm_native, norm_kernel), norm_inputs, ("x", "weight")),
    part(
        "add_norm",
        (add_norm_written, add_norm_native, add_norm_kernel),
        add_norm_inputs,
        ("x", "residual", "weight"),
    ),
    part("project", (project_written, project_native), project_inputs, ("x", "weight")),
    part("rotate", (rotate_written, rotate_written, rope), rotate_inputs, ("q", "k")),
    part("attend", (attend_written, attend_native), attend_inputs, ("q", "k", "v")),
    part("gated", (gated_written, gated_native, gated_kernel), gated_inputs, ("x", "weight")),
)

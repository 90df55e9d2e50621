"""Each part of the block alone, at each level."""

from collections.abc import Callable

import torch
from torch import Tensor

from snippets.patterns.levels import Component, Function, Shape, compiled
from snippets.patterns.transformer_block import (
    SHAPES,
    SIZES,
    add_norm_kernel,
    angles,
    attend_inputs,
    gated_kernel,
    matrix,
    norm_kernel,
    rope,
)
from snippets.patterns.transformer_block_eager import (
    add_norm_native,
    add_norm_written,
    attend_native,
    attend_written,
    gated_native,
    gated_written,
    norm_native,
    norm_written,
    project_native,
    project_written,
    rotate_written,
)


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


def rotate_inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    given, of = attend_inputs(shape, dtype, device), angles(shape[1], device)
    return {"q": given["q"], "k": given["k"], "cos": of.cos().to(dtype), "sin": of.sin().to(dtype)}


# --8<-- [start:parts]
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


# --8<-- [end:parts]

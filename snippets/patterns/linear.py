"""Linear layers at several levels: products merged, an activation behind one, batches of products, and experts.

Run `python -m snippets.patterns.compare_levels qkv` to check and time the levels of one.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from snippets.patterns.levels import Component, Shape, compiled, scripted
from snippets.patterns.linear_batched import BATCHED
from snippets.patterns.linear_epilogue import LINEAR_GELU
from snippets.patterns.linear_experts import EXPERTS
from snippets.patterns.linear_operands import made


# --8<-- [start:qkv]
def qkv_written(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of x (tokens, width); keys and values are a quarter as wide."""
    width = x.shape[-1]
    q, k, v = weight.split([width, width // 4, width // 4])
    return F.linear(x, q), F.linear(x, k), F.linear(x, v)


def qkv_native(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    width = x.shape[-1]
    q, k, v = F.linear(x, weight).split([width, width // 4, width // 4], -1)
    return q, k, v


# --8<-- [end:qkv]


# --8<-- [start:gate-up]
def gate_up_written(x: Tensor, weight: Tensor) -> Tensor:
    gate, up = weight.chunk(2)
    gate = x @ gate.t()
    return gate * torch.sigmoid(gate) * (x @ up.t())


def gate_up_native(x: Tensor, weight: Tensor) -> Tensor:
    gate, up = F.linear(x, weight).chunk(2, -1)
    return F.silu(gate) * up


# --8<-- [end:gate-up]


def qkv_inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    tokens, width = shape
    return made(dtype, device, x=(tokens, width), weight=(width + 2 * (width // 4), width))


def gate_up_inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    tokens, width, hidden = shape
    return made(dtype, device, x=(tokens, width), weight=(2 * hidden, width))


QKV = Component(
    name="qkv",
    levels={
        0: lambda: qkv_written,
        1: lambda: qkv_native,
        2: lambda: scripted(qkv_written),
        3: lambda: compiled(qkv_native),
    },
    reference=qkv_native,
    inputs=qkv_inputs,
    gradients=("x", "weight"),
    sizes=("tokens", "width"),
    shapes={"tiny": (16, 256), "small": (256, 1024), "typical": (8192, 4096), "large": (16384, 8192)},
)
GATE_UP = Component(
    name="gate_up",
    levels={
        0: lambda: gate_up_written,
        1: lambda: gate_up_native,
        2: lambda: scripted(gate_up_written),
        3: lambda: compiled(gate_up_native),
    },
    reference=gate_up_native,
    inputs=gate_up_inputs,
    gradients=("x", "weight"),
    sizes=("tokens", "width", "hidden"),
    shapes={
        "tiny": (16, 128, 256),
        "small": (256, 1024, 3584),
        "typical": (8192, 4096, 14336),
        "large": (16384, 8192, 28672),
    },
)
COMPONENTS = (QKV, GATE_UP, LINEAR_GELU, BATCHED, EXPERTS)

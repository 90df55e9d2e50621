"""A matmul with bias and GELU: written out, native, and in one kernel of cuBLAS."""

import torch
import torch.nn.functional as F
from torch import Tensor

from snippets.patterns.levels import Component, Shape, compiled, scripted
from snippets.patterns.linear_operands import made


# --8<-- [start:linear-gelu]
def linear_gelu_written(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    z = x @ weight.t() + bias
    return 0.5 * z * (1 + torch.tanh(0.7978845608028654 * (z + 0.044715 * z * z * z)))


def linear_gelu_native(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.linear(x, weight, bias), approximate="tanh")


# --8<-- [end:linear-gelu]


# --8<-- [start:epilogue]
def linear_gelu_epilogue(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """cuBLAS does all of it in one kernel. Private, without a backward; on a CPU it is the other GELU, with erf."""
    return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)


# --8<-- [end:epilogue]


def linear_gelu_inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    tokens, width = shape
    return made(dtype, device, x=(tokens, width), weight=(4 * width, width)) | {
        "bias": torch.randn(4 * width, device=device).to(dtype)
    }


LINEAR_GELU = Component(
    name="linear_gelu",
    levels={
        0: lambda: linear_gelu_written,
        1: lambda: linear_gelu_native,
        2: lambda: scripted(linear_gelu_written),
        3: lambda: compiled(linear_gelu_native),
    },
    reference=linear_gelu_native,
    inputs=linear_gelu_inputs,
    gradients=("x", "weight", "bias"),
    sizes=("tokens", "width"),
    shapes={"tiny": (16, 128), "small": (256, 1024), "typical": (8192, 4096), "large": (16384, 8192)},
)

"""GELU, its approximations and SiLU: each as first written, and as PyTorch has it."""

import torch
import torch.nn.functional as F
from torch import Tensor


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

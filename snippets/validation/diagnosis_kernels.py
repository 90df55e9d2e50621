"""Two programs whose kernels fill the step: one moves bytes, one multiplies matrices; and each one's mend."""

from functools import partial

import torch
from torch import Tensor

from snippets.validation.timing import Call


# --8<-- [start:memory]
def gelu_by_hand(x: Tensor) -> Tensor:
    """Nine operations, each of which reads the whole tensor and writes it again."""
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def activations(device: torch.device) -> Tensor:
    on_gpu = device.type == "cuda"
    return torch.randn(2**27 if on_gpu else 2**20, device=device).to(torch.bfloat16 if on_gpu else torch.float32)


def unfused(device: torch.device) -> Call:
    return partial(gelu_by_hand, activations(device))


def fused(device: torch.device) -> Call:
    return partial(torch.compile(gelu_by_hand), activations(device))


# --8<-- [end:memory]


# --8<-- [start:matrix]
def layers(x: Tensor, weights: list[Tensor]) -> Tensor:
    """Products and nothing else."""
    for weight in weights:
        x = x @ weight
    return x


def inputs(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    size = 4096 if device.type == "cuda" else 256
    x, *weights = (torch.randn(size, size, device=device).div(size**0.5).to(dtype) for _ in range(5))
    return x, weights


def in_float32(device: torch.device) -> Call:
    """PyTorch's default: fp32 products, which leave the tensor cores idle."""
    return partial(layers, *inputs(device, torch.float32))


def in_bfloat16(device: torch.device) -> Call:
    return partial(layers, *inputs(device, torch.bfloat16))


# --8<-- [end:matrix]

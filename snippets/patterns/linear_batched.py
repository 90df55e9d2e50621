"""A matmul for each of a batch: a loop and `torch.bmm`."""

import torch
from torch import Tensor

from snippets.patterns.levels import Component, Shape, compiled, scripted
from snippets.patterns.linear_operands import made


# --8<-- [start:batched]
def batched_written(x: Tensor, weight: Tensor) -> Tensor:
    """x (batch, rows, width), and a weight (width, width) for each of the batch."""
    return torch.stack([x[i] @ weight[i].t() for i in range(x.shape[0])])


def batched_native(x: Tensor, weight: Tensor) -> Tensor:
    return torch.bmm(x, weight.transpose(1, 2))


# --8<-- [end:batched]


# --8<-- [start:unbound]
def batched_unbound(x: Tensor, weight: Tensor) -> Tensor:
    """The loop again. The backward of unbind joins the gradients once; that of an index fills a tensor each time."""
    return torch.stack([each @ own.t() for each, own in zip(x.unbind(), weight.unbind(), strict=True)])


# --8<-- [end:unbound]


def batched_inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    batch, rows, width = shape
    return made(dtype, device, x=(batch, rows, width), weight=(batch, width, width))


BATCHED = Component(
    name="batched",
    levels={
        0: lambda: batched_written,
        1: lambda: batched_native,
        2: lambda: scripted(batched_written),
        3: lambda: compiled(batched_native),
    },
    reference=batched_native,
    inputs=batched_inputs,
    gradients=("x", "weight"),
    sizes=("batch", "rows", "width"),
    shapes={"tiny": (4, 16, 64), "small": (16, 64, 256), "typical": (64, 512, 1024), "large": (64, 2048, 2048)},
)

"""Matmuls of experts with unequal numbers of rows: a loop, one grouped matmul, and a padded batch."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from snippets.patterns.levels import Component, Shape, compiled, scripted
from snippets.patterns.linear_operands import made


# --8<-- [start:experts]
def experts_written(x: Tensor, weight: Tensor, ends: Tensor, sizes: list[int]) -> Tensor:
    """Rows of x (tokens, width), sorted by expert, each times its expert's weight of (experts, hidden, width)."""
    results = []
    for part, each in zip(x.split(sizes), weight.unbind()):  # noqa: B905  TorchScript knows no strict
        results.append(part @ each.t())
    return torch.cat(results)


def experts_native(x: Tensor, weight: Tensor, ends: Tensor, sizes: list[int]) -> Tensor:
    """`ends` says on the GPU where each expert's rows end: int32 (experts,). The host need not know."""
    return F.grouped_mm(x, weight.transpose(1, 2), offs=ends)


# --8<-- [end:experts]


# --8<-- [start:padded]
def experts_padded(x: Tensor, weight: Tensor, ends: Tensor, sizes: list[int]) -> Tensor:
    """A batch of products, for which each expert gets as many rows as the busiest one has."""
    padded = torch.bmm(pad_sequence(x.split(sizes), batch_first=True), weight.transpose(1, 2))
    return torch.cat([rows[:size] for rows, size in zip(padded, sizes, strict=True)])


# --8<-- [end:padded]


def experts_inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor | list[int]]:
    """Experts with unequal numbers of rows, each a multiple of 16: a group has to begin where 16 bytes do."""
    experts, tokens, width, hidden = shape
    sizes = uneven(experts, tokens)
    ends = torch.tensor(sizes, device=device).cumsum(0).to(torch.int32)
    return made(dtype, device, x=(tokens, width), weight=(experts, hidden, width)) | {"ends": ends, "sizes": sizes}


def uneven(experts: int, tokens: int, multiple: int = 16) -> list[int]:
    """From half of the average to one and a half times as many; the last expert gets what is left over."""
    shares = [0.5 + expert / max(experts - 1, 1) for expert in range(experts)]
    sizes = [math.floor(share * tokens / sum(shares) / multiple) * multiple for share in shares]
    sizes[-1] += tokens - sum(sizes)
    return sizes


EXPERTS = Component(
    name="experts",
    levels={
        0: lambda: experts_written,
        1: lambda: experts_native,
        2: lambda: scripted(experts_written),
        3: lambda: compiled(experts_native),
    },
    reference=experts_written,  # the grouped product knows no float64
    yardstick=0,
    inputs=experts_inputs,
    gradients=("x", "weight"),
    sizes=("experts", "tokens", "width", "hidden"),
    shapes={
        "tiny": (4, 128, 64, 96),
        "small": (8, 512, 256, 512),
        "typical": (64, 32768, 2048, 1536),
        "large": (8, 65536, 4096, 14336),
    },
)

"""The operands of a matmul: stored in other ways, with zeros at the end, and drawn at random."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from snippets.patterns.levels import Shape


# --8<-- [start:layouts]
def layouts(x: Tensor, weight: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """The same x (rows, inner) and weight (columns, inner), stored in other ways, to be multiplied by F.linear."""
    x_columns, weight_columns = x.t().contiguous().t(), weight.t().contiguous().t()
    wide = x.new_zeros(x.shape[0], 2 * x.shape[1])
    left, every_other = wide.clone(), wide
    left[:, : x.shape[1]], every_other[:, ::2] = x, x
    return {
        "rows-rows": (x, weight),  # as nn.Linear stores its weight
        "rows-columns": (x, weight_columns),
        "columns-rows": (x_columns, weight),
        "columns-columns": (x_columns, weight_columns),
        "left-half": (left[:, : x.shape[1]], weight),
        "every-other": (every_other[:, ::2], weight),
    }


# --8<-- [end:layouts]


# --8<-- [start:larger]
def larger(weight: Tensor, multiple: int = 64) -> Tensor:
    """The weight (columns, inner) with zeros at its end, so that both sizes are multiples."""
    columns, inner = weight.shape
    return F.pad(weight, (0, -inner % multiple, 0, -columns % multiple))


# --8<-- [end:larger]


def made(dtype: torch.dtype, device: torch.device, **sizes: Shape) -> dict[str, Tensor]:
    """Random tensors; a weight is divided by the root of how many products each sum has."""
    drawn = {name: torch.randn(size, device=device) for name, size in sizes.items()}
    drawn["weight"] /= math.sqrt(drawn["weight"].shape[-1])
    return {name: t.to(dtype) for name, t in drawn.items()}

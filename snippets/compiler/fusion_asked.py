"""Functions whose plan is a question: columns, two layouts, products. For a custom_op see fusion.py."""

import torch
from torch import Tensor


# --8<-- [start:asked]
def column_softmax(x: Tensor) -> Tensor:
    """Two reductions down the columns."""
    return torch.softmax(x, dim=0)


def both_layouts(x: Tensor) -> tuple[Tensor, Tensor]:
    """One result, as it is and transposed."""
    sine = x.sin()
    return sine, sine.t().contiguous()


def product_and_bias(x: Tensor) -> Tensor:
    """A product, with a row that is added."""
    return x @ x.t() + x[0]


def product_and_scatter(x: Tensor) -> Tensor:
    """A product whose rows are added up."""
    return torch.zeros_like(x).index_add(0, torch.arange(len(x), device=x.device) // 2, x @ x.t())


# --8<-- [end:asked]

"""Custom operators that break a promise: another shape, an undeclared write, another dtype, other strides."""

import torch
from torch import Tensor


# --8<-- [start:shape]
@torch.library.custom_op("planted::changes", mutates_args=())
def changes(x: Tensor) -> Tensor:
    """The differences of neighbouring rows: one row less than x."""
    return x[1:] - x[:-1]


@changes.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)  # wrong: as many rows as x


def mean_change(x: Tensor) -> Tensor:
    rows = changes(x)
    return rows.sum(0) / rows.shape[0]


# --8<-- [end:shape]
# --8<-- [start:mutation]
@torch.library.custom_op("planted::scale_", mutates_args=())  # wrong: mutates_args=("x",)
def scale_(x: Tensor, factor: float) -> None:
    x.mul_(factor)


@scale_.register_fake
def _(x: Tensor, factor: float) -> None:
    return None


def scaled(x: Tensor) -> Tensor:
    y = x.exp()
    scale_(y, 0.5)
    return y + 1


# --8<-- [end:mutation]
# --8<-- [start:dtype]
@torch.library.custom_op("planted::precise", mutates_args=())
def precise(x: Tensor) -> Tensor:
    return x.double().exp()


@precise.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)  # wrong: dtype=torch.float64


def precise_sin(x: Tensor) -> Tensor:
    return precise(x).sin()


# --8<-- [end:dtype]
# --8<-- [start:stride]
@torch.library.custom_op("planted::by_column", mutates_args=())
def by_column(x: Tensor) -> Tensor:
    return x.mT.contiguous().mT


@by_column.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)  # wrong: strides of a transposed tensor


def stored_by_column(x: Tensor) -> Tensor:
    return by_column(x).sin()


# --8<-- [end:stride]

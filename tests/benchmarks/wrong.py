"""Functions that are wrong in a usual way, made from a right one: what a case's check must refuse."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

TILE = 128
Function = Callable[..., Tensor | tuple[Tensor, ...]]


def scaled(function: Function, factor: float = 1.05) -> Function:
    """All results are a factor too large, and with them their gradients."""
    return changed(function, lambda y: factor * y)


def cut(function: Function) -> Function:
    """The last tile of columns is never written."""
    return changed(function, lambda y: F.pad(y[..., :-TILE], (0, TILE)))


def usual(function: Function) -> dict[str, Function]:
    """Both, by what is wrong with them."""
    return {"5% too large": scaled(function), "last tile not written": cut(function)}


def changed(function: Function, change: Callable[[Tensor], Tensor]) -> Function:
    """Each result is changed."""

    def wrong(*arguments: Tensor) -> Tensor | tuple[Tensor, ...]:
        returned = function(*arguments)
        return change(returned) if isinstance(returned, Tensor) else tuple(map(change, returned))

    return wrong


def with_gradient(function: Function, change: Callable[[Tensor], Tensor]) -> Function:
    """The result is right; the gradient of the first argument is changed."""

    def wrong(first: Tensor, *others: Tensor) -> Tensor | tuple[Tensor, ...]:
        first = first.view_as(first)
        if first.requires_grad:
            first.register_hook(change)
        return function(first, *others)

    return wrong

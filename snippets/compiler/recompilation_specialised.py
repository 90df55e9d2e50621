"""Small functions, each called with values that PyTorch may make constants of."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


# --8<-- [start:functions]
def double(x: Tensor) -> Tensor:
    return x * 2


def scaled(x: Tensor, factor: Any) -> Tensor:
    return x * factor


def activated(x: Tensor, name: str) -> Tensor:
    return F.relu(x) if name == "relu" else F.gelu(x)


def total(tensors: list[Tensor]) -> Tensor:
    return torch.stack(tensors).sum(0)


class Scaled(nn.Module):
    """A module that reads a number of its own."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


# --8<-- [end:functions]
def calls(function: Callable, *each: tuple) -> Callable[[Callable], None]:
    """A scene: the function, compiled, called with each tuple of arguments."""

    def scene(compile: Callable) -> None:
        compiled = compile(function)
        for arguments in each:
            compiled(*arguments)

    return scene


def attribute(*values: float) -> Callable[[Callable], None]:
    """A scene: a module whose attribute has another value in each call."""

    def scene(compile: Callable) -> None:
        module = Scaled(values[0])
        compiled = compile(module)
        for value in values:
            module.factor = value
            compiled(torch.ones(4))

    return scene


def under(*contexts: Callable) -> Callable[[Callable], None]:
    """A scene: the same call under several context managers."""

    def scene(compile: Callable) -> None:
        compiled = compile(double)
        for context in contexts:
            with context():
                compiled(torch.ones(4))

    return scene


def ones(*sizes: int, **keywords: Any) -> tuple[Tensor]:
    return (torch.ones(*sizes, **keywords),)


# --8<-- [start:specialised]
SPECIALISED = {  # what differs from call to call: the calls
    "size 5, 6, 7, 8": calls(double, ones(5), ones(6), ones(7), ones(8)),
    "size 5, 6, 1, 0": calls(double, ones(5), ones(6), ones(1), ones(0)),
    "number of dimensions": calls(double, ones(4), ones(4, 1), ones(4, 1, 1)),
    "dtype": calls(double, ones(4), ones(4, dtype=torch.float64), ones(4, dtype=torch.bfloat16)),
    "device": calls(double, ones(4), ones(4, device="meta")),
    "requires_grad": calls(double, ones(4), ones(4, requires_grad=True)),
    "strides, transposed": calls(double, ones(4, 6), (torch.ones(6, 4).t(),)),
    "int argument 5, 6, 7, 8": calls(scaled, *((torch.ones(4), value) for value in (5, 6, 7, 8))),
    "float argument .5, .6, .7, .8": calls(scaled, *((torch.ones(4), value) for value in (0.5, 0.6, 0.7, 0.8))),
    "string argument": calls(activated, *((torch.ones(4), name) for name in ("relu", "gelu", "relu"))),
    "list of 2, 3, 4, 5 tensors": calls(total, *(([torch.ones(4)] * length,) for length in (2, 3, 4, 5))),
    "int attribute 5, 6, 7, 8": attribute(5, 6, 7, 8),
    "float attribute .5, .6, .7, .8": attribute(0.5, 0.6, 0.7, 0.8),
    "grad mode": under(torch.enable_grad, torch.no_grad),
    "autocast": under(torch.enable_grad, partial(torch.autocast, "cpu")),
}
# --8<-- [end:specialised]

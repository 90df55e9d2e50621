"""How to script or trace a function, and the Python that TorchScript's language has not."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def scripted(function: Any, *inputs: Tensor) -> Any:
    """Script a function or module, or trace it where inputs are given, without the warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.trace(function, inputs) if inputs else torch.jit.script(function)


def warned(make: Callable[..., Any], *arguments: Any) -> list[str]:
    """What PyTorch says to whoever calls it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make(*arguments)
    return list(dict.fromkeys(f"{one.category.__name__}: {one.message}" for one in caught))


# --8<-- [start:refused]
def with_options(x: Tensor, **options: float) -> Tensor:
    return x * options.get("scale", 1.0)


def with_a_number(x, n):
    return x * n


def with_a_lambda(x: Tensor) -> Tensor:
    return (lambda y: y + 1)(x)


def maybe_nothing(x: Tensor, give: bool) -> Tensor:
    y = None
    if give:
        y = x
    return y


# --8<-- [end:refused]
def refusals() -> list[tuple[str, str]]:
    """The language's limits: the first lines of what the compiler of TorchScript says."""
    said = []
    for function in (with_options, with_a_lambda, maybe_nothing, with_a_number):
        try:
            scripted(function)(torch.ones(2), 3)
        except (RuntimeError, torch.jit.frontend.FrontendError) as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            said.append((function.__name__, f"{type(error).__name__}: {lines[0].strip()}"))
    return said

"""A function as it was written first and as it compiles whole, with the inputs of its calls."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

CALLS = 12  # more than the eight graphs that one function may have

Inputs = Sequence[tuple]  # the arguments of each call
Side = Callable[[Callable], tuple[Callable, Inputs]]  # given a `compile`: what to call, and with what


@dataclass(frozen=True)
class Rewrite:
    """A pair that computes the same.

    Attributes:
        common: what the second returns, in the form of what the first does.
        forget: puts what the first keeps between calls back to the beginning.
    """

    before: Side
    after: Side
    common: Callable[[Any], Tensor] = lambda output: output
    forget: Callable[[], None] = lambda: None


def side(function: Callable, inputs: Inputs) -> Side:
    return lambda compile: (compile(function), inputs)


def twins(before: nn.Module, after: nn.Module, device: str) -> tuple[Any, Any]:
    """Both with the same weights."""
    after.load_state_dict(before.state_dict(), strict=False)
    return before.to(device), after.to(device)


# --8<-- [start:outputs]
@torch.no_grad()
def outputs(pair: Rewrite, compile: Callable = lambda function: function) -> tuple[list[Tensor], list[Tensor]]:
    """What both sides return, call by call, in a common form."""
    pair.forget()
    before, inputs = pair.before(compile)
    first = [before(*arguments) for arguments in inputs]
    pair.forget()
    after, inputs = pair.after(compile)
    return first, [pair.common(after(*arguments)) for arguments in inputs]


# --8<-- [end:outputs]

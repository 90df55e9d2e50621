"""Calls of a module, or a function, on one input without gradients."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from tests.benchmarks.case import Call, Results
from tests.benchmarks.own import own


def call(function: Callable, x: Tensor) -> Call:
    return torch.no_grad()(partial(function, x))


def compiled(module: nn.Module, x: Tensor, mode: str | None = None) -> Call:
    """Compiled for this batch, and what a CUDA graph does in its second and third call done."""

    def apply(x: Tensor) -> Tensor:
        return module(x)

    fast = call(torch.compile(own(apply), dynamic=False, mode=mode), x)
    for _ in range(3):
        fast()
    return fast


def wrongly(function: Callable, x: Tensor) -> Callable[[Results], Results]:
    return lambda baseline: {"output": call(function, x)()}

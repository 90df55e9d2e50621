"""Breaks in modules and in backward: a mutation, a custom backward, a hook. Each before and after its fix."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


# --8<-- [start:mutation]
class MutationBefore(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.calls, self.seen = 0, {}

    def forward(self, x: Tensor) -> Tensor:
        x = x.sin()
        self.linear.weight.requires_grad_(False)  # breaks
        self.calls += 1  # does not
        self.seen["mean"] = x.mean()  # does not
        return self.linear(x)


class MutationAfter(MutationBefore):
    def __init__(self) -> None:
        super().__init__()
        self.linear.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = x.sin()
        self.calls += 1
        self.seen["mean"] = x.mean()
        return self.linear(x)


# --8<-- [end:mutation]
# --8<-- [start:autograd]
class SquareBefore(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        if grad.isnan().any():
            grad = grad.nan_to_num()
        return 2 * x * grad


class SquareAfter(SquareBefore):
    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grad.nan_to_num()


def autograd_before(x: Tensor) -> Tensor:
    return SquareBefore.apply(x.sin()).cos()


def autograd_after(x: Tensor) -> Tensor:
    return SquareAfter.apply(x.sin()).cos()


# --8<-- [end:autograd]
# --8<-- [start:hooks]
largest: dict[str, float | Tensor] = {}


def hook_before(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    largest["hidden"] = output.abs().max().item()


def hook_after(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    largest["hidden"] = output.detach().abs().max()  # .item() after the step, where it is logged


class Hooked(nn.Module):
    def __init__(self, hook: Callable) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)
        self.up.register_forward_hook(hook)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu())


# --8<-- [end:hooks]

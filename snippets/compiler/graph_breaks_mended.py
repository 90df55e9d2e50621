"""Twelve graph breaks, each before and after its mend, with what the log says of it."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from snippets.compiler.graph_breaks import find


# --8<-- [start:branch]
def branch_before(x: Tensor) -> Tensor:
    hidden = x.sin()
    if hidden.mean() > 0:
        return hidden * 2
    return hidden - 1


def branch_after(x: Tensor) -> Tensor:
    hidden = x.sin()
    return torch.where(hidden.mean() > 0, hidden * 2, hidden - 1)


def branch_cond(x: Tensor) -> Tensor:
    hidden = x.sin()
    return torch.cond(hidden.mean() > 0, lambda h: h * 2, lambda h: h - 1, (hidden,))


# --8<-- [end:branch]


# --8<-- [start:item]
def item_before(x: Tensor) -> Tensor:
    scale = x.abs().max().item()
    return (x / scale).cos()


def item_after(x: Tensor) -> Tensor:
    scale = x.abs().max()  # stays a tensor of one element
    return (x / scale).cos()


# --8<-- [end:item]


# --8<-- [start:logging]
log = logging.getLogger(__name__)


def logging_before(x: Tensor) -> Tensor:
    hidden = x.sin()
    log.info("%d rows", len(x))
    return hidden.cos()


def logging_after(x: Tensor) -> Tensor:
    hidden = x.sin()
    if not torch.compiler.is_compiling():
        log.info("%d rows", len(x))
    return hidden.cos()


# --8<-- [end:logging]


# --8<-- [start:library]
seconds: list[float] = []


def library_before(x: Tensor) -> Tensor:
    began = time.perf_counter()
    hidden = x.sin().cos()
    seconds.append(time.perf_counter() - began)
    return hidden.exp()


def library_after(x: Tensor) -> Tensor:
    return x.sin().cos().exp()  # who calls the compiled function takes the time


# --8<-- [end:library]


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


# --8<-- [start:context]
lock = threading.Lock()


def context_before(x: Tensor) -> Tensor:
    with lock:
        hidden = x.sin()
    return hidden.cos()


def context_after(x: Tensor) -> Tensor:
    return x.sin().cos()  # compiled = torch.compile(context_after), and then: with lock: compiled(x)


# --8<-- [end:context]


# --8<-- [start:generator]
def generator_before(x: Tensor, factors: Iterator[Tensor]) -> Tensor:
    hidden = x.sin()
    return (hidden * next(factors)).cos()


def generator_after(x: Tensor, factor: Tensor) -> Tensor:
    hidden = x.sin()
    return (hidden * factor).cos()  # compiled(x, next(factors))


# --8<-- [end:generator]


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


# --8<-- [start:numpy]
def numpy_before(x: Tensor) -> Tensor:
    import numpy

    hidden = x.sin()
    return torch.from_numpy(numpy.interp(hidden.numpy(), [0, 1], [0, 2])).float().cos()


def numpy_after(x: Tensor) -> Tensor:
    hidden = x.sin()
    return (2 * hidden.clamp(0, 1)).cos()


# --8<-- [end:numpy]


# --8<-- [start:try]
def try_before(x: Tensor) -> Tensor:
    hidden = x.log()
    try:
        if not hidden.isfinite().all().item():
            raise ValueError
        return hidden.cos()
    except ValueError:
        return x.cos()


def try_after(x: Tensor) -> Tensor:
    hidden = x.log()
    return torch.where(hidden.isfinite().all(), hidden, x).cos()


# --8<-- [end:try]


# --8<-- [start:third-party]
def ranks(scores: Tensor) -> Tensor:
    """Stands for a library's function, in Python or C, that leaves tensors for numbers."""
    values = scores.tolist()
    order = sorted(range(len(values)), key=values.__getitem__)
    return torch.tensor(order, device=scores.device).argsort()


def third_party_before(x: Tensor) -> Tensor:
    return x.sin() * ranks(x[:, 0])[:, None]


@torch.library.custom_op("ridgepoint::ranks", mutates_args=())
def ranks_op(scores: Tensor) -> Tensor:
    return ranks(scores)


@ranks_op.register_fake
def _(scores: Tensor) -> Tensor:  # what the result looks like, without computing it
    return scores.new_empty(scores.shape, dtype=torch.int64)


def third_party_after(x: Tensor) -> Tensor:
    return x.sin() * ranks_op(x[:, 0])[:, None]


# --8<-- [end:third-party]


@dataclass(frozen=True)
class Break:
    """One kind: the function before and after, and what makes the inputs of each."""

    before: Callable
    after: Callable
    inputs: Callable[[], tuple]
    inputs_after: Callable[[], tuple] | None = None

    def arguments_after(self) -> tuple:
        return (self.inputs_after or self.inputs)()


def make_x() -> Tensor:
    return torch.linspace(-1, 2, 32).view(4, 8)


def modules() -> tuple[nn.Module, ...]:
    """The two pairs of modules, each pair with the same weights."""
    pairs = (MutationBefore(), MutationAfter()), (Hooked(hook_before), Hooked(hook_after))
    for before, after in pairs:
        after.load_state_dict(before.state_dict())
    return *pairs[0], *pairs[1]


def twelve() -> dict[str, Break]:
    """All kinds, in the order of the page."""
    mutating, frozen, hooked, hooked_after = modules()
    one = lambda: (make_x(),)  # noqa: E731
    leaf = lambda: (make_x().requires_grad_(),)  # noqa: E731
    factor = torch.tensor(1.5)
    return {
        "branch": Break(branch_before, branch_after, one),
        "item": Break(item_before, item_after, one),
        "logging": Break(logging_before, logging_after, one),
        "library": Break(library_before, library_after, one),
        "mutation": Break(mutating, frozen, one),
        "context": Break(context_before, context_after, one),
        "generator": Break(
            generator_before, generator_after, lambda: (make_x(), (f for f in [factor])), lambda: (make_x(), factor)
        ),
        "autograd": Break(autograd_before, autograd_after, leaf),
        "hooks": Break(hooked, hooked_after, one),
        "numpy": Break(numpy_before, numpy_after, one),
        "try": Break(try_before, try_after, one),
        "third-party": Break(third_party_before, third_party_after, one),
    }


def main() -> None:
    """Print what the log says of each kind before."""
    for name, kind in twelve().items():
        print(f"==== {name}")
        print(find(kind.before, *kind.inputs()).log[0])


if __name__ == "__main__":
    main()

"""Three programs in which the GPU waits for the host: it launches, waits itself or compiles; and each one's mend."""

import itertools
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from snippets.validation.diagnosis_kernels import inputs, layers
from snippets.validation.timing import Call, captured


# --8<-- [start:launching]
def many_small(x: Tensor) -> Tensor:
    """A deep and narrow network: 200 launches, and no kernel has much to do."""
    for _ in range(100):
        x = (x + 1.0).tanh()
    return x


def launched(device: torch.device) -> Call:
    return partial(many_small, torch.zeros(512, 512, device=device))


def recorded(device: torch.device) -> Call:
    """The same launches, recorded once: replayed with one."""
    return captured(launched(device))


# --8<-- [end:launching]
# --8<-- [start:waiting]
def optimizer_like(small: Tensor) -> Tensor:
    """Many short launches after the long kernels, as an optimizer that is not fused has."""
    for _ in range(100):
        small = small * 0.999 + 0.001
    return small


def logged(device: torch.device, every: int) -> Call:
    """A step that looks at its loss: in each step, or once in so many."""
    x, weights = inputs(device, torch.bfloat16)
    weights = 2 * weights
    small, losses, calls = torch.zeros(2**16, device=device), [], itertools.count(1)

    def step() -> Tensor:
        loss = layers(x, weights).float().square().mean()
        losses.append(loss.detach())
        if next(calls) % every == 0:
            print_to_nowhere(torch.stack(losses).mean().item())  # waits until the GPU is done
            losses.clear()
        return optimizer_like(small)

    return step


def print_to_nowhere(number: float) -> None:
    """Where a program would log."""


# --8<-- [end:waiting]


# --8<-- [start:compiling]
def scores(x: Tensor) -> Tensor:
    return torch.softmax(x * 0.125, dim=-1).sum(dim=0)


def lengths(device: torch.device) -> Iterator[Tensor]:
    """Batches as long as their longest sentence: each another size."""
    for length in itertools.count(64):
        yield torch.randn(length, 256, device=device)


def one_graph_each(device: torch.device) -> Call:
    compiled, batches = torch.compile(lambda batch: scores(batch), dynamic=False), lengths(device)
    return lambda: compiled(next(batches))


def one_graph_for_all(device: torch.device) -> Call:
    compiled, batches = torch.compile(lambda batch: scores(batch)), lengths(device)

    def step() -> Tensor:
        batch = next(batches)
        torch._dynamo.mark_dynamic(batch, 0)
        return compiled(batch)

    return step


# --8<-- [end:compiling]

"""Numbers in attributes, globals, loops and optimizers that compile again in each call, before and after the fix."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from snippets.compiler.recompilation_specialised import Scaled


# --8<-- [start:attribute]
def attribute_before(compile: Callable) -> None:
    module = Scaled(5)
    compiled = compile(module)
    for step in range(5, 11):
        module.factor = step
        compiled(torch.ones(4))


def attribute_after(compile: Callable) -> None:
    module = Scaled(torch.tensor(5))
    compiled = compile(module)
    for step in range(5, 11):
        module.factor.fill_(step)
        compiled(torch.ones(4))


# --8<-- [end:attribute]
# --8<-- [start:layers]
class Layer(nn.Module):
    """A layer that finds its part of a cache by its own number, as many decoders do."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index

    def forward(self, x: Tensor, cache: list[Tensor]) -> Tensor:
        return x + cache[self.index]


class Given(nn.Module):
    """The same layer, which is given its part."""

    def forward(self, x: Tensor, part: Tensor) -> Tensor:
        return x + part


def layers_before(compile: Callable) -> None:
    cache = [torch.ones(4) for _ in range(12)]
    for index in range(12):
        compile(Layer(index))(torch.ones(4), cache)  # twelve modules, one forward: one list of entries


def layers_after(compile: Callable) -> None:
    cache = [torch.ones(4) for _ in range(12)]
    for index in range(12):
        compile(Given())(torch.ones(4), cache[index])


# --8<-- [end:layers]
# --8<-- [start:global]
temperature = 5


def cooled(x: Tensor) -> Tensor:
    return x / temperature


def global_before(compile: Callable) -> None:
    global temperature
    compiled = compile(cooled)
    for value in range(5, 11):
        temperature = value
        compiled(torch.ones(4))


def global_after(compile: Callable) -> None:
    compiled = compile(lambda x, temperature: x / temperature)
    for value in range(5, 11):
        compiled(torch.ones(4), value)


# --8<-- [end:global]
# --8<-- [start:loop]
def shifted(x: Tensor, steps: int) -> Tensor:
    for _ in range(steps):  # unrolled: the graph has this many additions, and no others
        x = x + 1
    return x


def loop_before(compile: Callable) -> None:
    compiled = compile(shifted)
    for steps in range(2, 8):
        compiled(torch.ones(4), steps)


def loop_after(compile: Callable) -> None:
    compiled = compile(lambda x, steps: x + steps)
    for steps in range(2, 8):
        compiled(torch.ones(4), steps)


# --8<-- [end:loop]
# --8<-- [start:rate]
def descend(compile: Callable, rate: float | Tensor) -> None:
    weight = nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4)
    optimizer = torch.optim.SGD([weight], lr=rate)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    step = compile(lambda: optimizer.step())
    for _ in range(6):
        step()
        schedule.step()


def rate_before(compile: Callable) -> None:
    descend(compile, 0.1)


def rate_after(compile: Callable) -> None:
    descend(compile, torch.tensor(0.1))


# --8<-- [end:rate]

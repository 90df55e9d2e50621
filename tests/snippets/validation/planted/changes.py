"""What pairs of a module and a changed version are made of: the two share parts, seed and inputs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Net(nn.Module):
    """A module whose forward is a function of itself and of its inputs."""

    def __init__(self, run: Callable, parts: dict[str, Any]):
        super().__init__()
        self.run = run
        for name, part in parts.items():
            if type(part) is Tensor:
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *inputs: Any) -> Any:
        return self.run(self, *inputs)


class Change(NamedTuple):
    """A module and a changed version: what runs in each, the parts of both, and the inputs of a call.

    Attributes:
        mend: called with the changed module, to change what is no forward, such as a layout; returns the module.
    """

    before: Callable
    after: Callable
    parts: Callable[[], dict[str, Any]] = dict
    inputs: Callable[[], tuple] = lambda: (torch.randn(8, 16),)
    mend: Callable[[nn.Module], nn.Module] = lambda module: module

    def made(self) -> tuple[nn.Module, nn.Module, tuple]:
        modules = []
        for run in (self.before, self.after):
            torch.manual_seed(0)
            modules.append(Net(run, self.parts()))
        torch.manual_seed(1)
        return modules[0], self.mend(modules[1]), self.inputs()


def line() -> dict[str, Any]:
    return {"fc": nn.Linear(16, 16)}


def heads() -> tuple[Tensor, ...]:
    return tuple(torch.randn(2, 4, 12, 8, requires_grad=True) for _ in range(3))


def rows(*shape: int) -> Callable[[], tuple]:
    return lambda: (torch.randn(*shape, requires_grad=True),)

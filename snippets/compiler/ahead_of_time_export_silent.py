"""What export makes a constant without a word: three calls of a module and of its program."""

import copy

import torch
from torch import Tensor, nn
from torch.export import export

from snippets.compiler.ahead_of_time_export_batch import X


# --8<-- [start:silent]
class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x[0, 0] * 0 + self.calls


class Buffer(nn.Module):
    """The same with a tensor that export knows of; calling the program changes it."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x[0, 0] * 0 + self.calls


class Remembers(nn.Module):
    last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.last = x
        return x + 1


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(x)


def three_calls(module: nn.Module) -> str:
    """What three calls return, the module itself and then its exported program."""
    program = export(copy.deepcopy(module), (X,)).module()
    eager, exported = ([f"{module_(X).mean():.3f}" for _ in range(3)] for module_ in (module, program))
    return f"{' '.join(eager)}   {' '.join(exported)}"


def left_behind() -> str:
    """What an attribute holds that forward has set, after export and a call of the program."""
    module = Remembers()
    export(module, (X,)).module()(X)
    return type(module.last).__name__


# --8<-- [end:silent]

"""What a call, a guard and a graph break cost: programs that differ in nothing else."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
REPETITIONS = 5 if DEVICE == "cuda" else 3
BREAKS = 2  # of a function
GUARDED = 1000  # integers that a function reads: the guards of a hundred are lost in the noise
Sample = list[float]  # seconds, one for each repetition


# --8<-- [start:calls]
def a_call(function: Callable[..., object], *inputs: object, calls: int = 1000) -> Sample:
    """Seconds of a call, back to back, as the host sees them: the work itself is small."""
    for _ in range(3):
        function(*inputs)
    timer = Timer("function(*inputs)", globals={"function": function, "inputs": inputs})
    return [timer.timeit(calls).median for _ in range(REPETITIONS)]


def add_one(x: Tensor) -> Tensor:
    return x + 1


class Configured:
    """A function that reads some integers, each of which compiled code guards."""

    def __init__(self, count: int):
        self.numbers = {f"n{index}": index for index in range(count)}
        self.names = list(self.numbers)

    def __call__(self, x: Tensor) -> Tensor:
        total = 0
        for name in self.names:
            total += self.numbers[name]
        return x + total


def whole(x: Tensor) -> Tensor:
    return x + 1 + 1 + 1


def broken(x: Tensor) -> Tensor:
    """The same, with BREAKS graph breaks; one within a loop would leave the whole function to eager."""
    x = x + 1
    torch._dynamo.graph_break()
    x = x + 1
    torch._dynamo.graph_break()
    return x + 1


# --8<-- [end:calls]
def difference(more: Sample, less: Sample, count: int = 1) -> Sample:
    """What each of `count` things costs that one program has more than another."""
    return [(a - b) / count for a, b in zip(more, less, strict=True)]


def compiled(function: Callable[..., object], **options: object) -> Callable[..., object]:
    """A function compiled on its own: what others have compiled is forgotten."""
    torch.compiler.reset()
    return torch.compile(function, **options)  # type: ignore[call-overload]


def calls() -> Iterator[tuple[str, Sample]]:
    """What is paid at each call, on a tensor so small that the host decides."""
    x = torch.randn(64, device=DEVICE)
    with torch.no_grad():
        yield "call, beyond eager code", difference(a_call(compiled(add_one), x), a_call(add_one, x))
        few, many = (a_call(compiled(Configured(count)), x) for count in (1, GUARDED + 1))
        yield "guard", difference(many, few, GUARDED)
        yield "graph break", difference(a_call(compiled(broken), x), a_call(compiled(whole), x), BREAKS)

"""Three counts that tell slow functions apart: graphs, late compilations, graphs in a call."""

from collections.abc import Callable

import torch
from torch import Tensor


# --8<-- [start:vitals]
def vitals(function: Callable, *batches: tuple) -> str:
    """Call it twice with each batch, compile nothing, and count: what is to be looked at where it is slow."""
    captured, ran, late = 0, 0, 0

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable:
        nonlocal captured
        captured += 1

        def run(*arguments: Tensor) -> object:
            nonlocal ran
            ran += 1
            return graph(*arguments)

        return run

    torch.compiler.reset()
    watched = torch.compile(function, backend=backend)
    for batch in batches:
        before = captured
        watched(*batch)
        late += captured > before
    ran = 0
    for batch in batches:
        watched(*batch)
    return (
        f"{captured} graphs; {late} of {len(batches)} batches had to be compiled; {ran / len(batches):g} graphs a call"
    )


# --8<-- [end:vitals]
# --8<-- [start:slow]
def one_graph(x: Tensor, step: int) -> Tensor:
    return x.sin().cos()


def broken(x: Tensor, step: int) -> Tensor:
    x = x.sin()
    print(end="")
    return x.cos()


def broken_in_a_loop(x: Tensor, step: int) -> Tensor:
    for _ in range(2):
        x = x.sin()
        print(end="")
    return x


def step_by_name(x: Tensor, name: str) -> Tensor:
    return x + len(name)


# --8<-- [end:slow]

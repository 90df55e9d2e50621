"""Pitfalls that a count of graphs shows: what is compiled, and how often."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from snippets.reference.common_pitfalls_breaks import make_x


class Counter:
    """A backend that compiles nothing and counts the graphs that it is given."""

    def __init__(self) -> None:
        torch.compiler.reset()
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable:
        self.graphs += 1
        return graph

    def __str__(self) -> str:
        return f"{self.graphs} graph{'s' * (self.graphs != 1)} compiled"


class Generator(nn.Module):
    """A model with a method beside forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).sin()

    @torch.no_grad()
    def generate(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self(x)
        return x


# --8<-- [start:thrown-away]
def thrown_away_before() -> str:
    backend, model = Counter(), Generator()
    torch.compile(model, backend=backend)
    model(make_x())
    return str(backend)


def thrown_away_after() -> str:
    backend, model = Counter(), Generator()
    model.compile(backend=backend)  # or: model = torch.compile(model)
    model(make_x())
    return str(backend)


# --8<-- [end:thrown-away]


# --8<-- [start:first-call]
def first_call_before() -> str:
    backend = Counter()
    fast = torch.compile(torch.sin, backend=backend)
    return timed(lambda: fast(make_x()), backend)


def first_call_after() -> str:
    backend = Counter()
    fast = torch.compile(torch.sin, backend=backend)
    fast(make_x())  # compiled here
    return timed(lambda: fast(make_x()), backend)


def timed(call: Callable, backend: Counter) -> str:
    """What happened while the clock ran."""
    before = backend.graphs
    for _ in range(10):
        call()
    return f"within the ten timed calls: {backend.graphs - before} compiled"


# --8<-- [end:first-call]


# --8<-- [start:other-method]
def other_method_before() -> str:
    backend, model = Counter(), Generator()
    fast = torch.compile(model, backend=backend)
    fast.generate(make_x())
    return str(backend)


def other_method_after() -> str:
    backend, model = Counter(), Generator()
    model.compile(backend=backend)  # generate calls self(x), and that is compiled
    model.generate(make_x())
    return str(backend)


# --8<-- [end:other-method]


# --8<-- [start:late-mark]
def late_mark(marked: tuple[int, ...]) -> str:
    backend = Counter()
    fast = torch.compile(torch.sin, backend=backend)
    for length in (3, 4, 5):
        x = torch.ones(length)
        if length in marked:
            torch._dynamo.mark_dynamic(x, 0)
        fast(x)
    return str(backend)


# before: late_mark(marked=(4, 5))
# after:  late_mark(marked=(3,))
# --8<-- [end:late-mark]


# --8<-- [start:in-a-loop]
def in_a_loop_before() -> str:
    backend, x = Counter(), make_x()
    for step in range(20):
        fast = torch.compile(lambda x: x * step, backend=backend, dynamic=False)  # noqa: B023  (called at once)
        fast(x)
    return str(backend)


def in_a_loop_after() -> str:
    backend, x = Counter(), make_x()
    fast = torch.compile(torch.mul, backend=backend, dynamic=False)
    for step in range(20):
        fast(x, torch.tensor(step))
    return str(backend)


# --8<-- [end:in-a-loop]

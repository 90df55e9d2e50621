"""Graph breaks: find them, read their log, and see how much of a function one of them takes along."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# What Dynamo writes under TORCH_LOGS=graph_breaks goes to this logger.
LOG = logging.getLogger("torch._dynamo.symbolic_convert.__graph_breaks")
SKIPPED = "Skipping the function and falling back to eager"


# --8<-- [start:find]
@dataclass(frozen=True)
class Found:
    """What Dynamo made of a function: the operations in each graph, and the log's entry for each break."""

    graphs: list[int]
    log: list[str]

    @property
    def skipped(self) -> bool:
        """Whether some function was given up as a whole."""
        return any(SKIPPED in entry for entry in self.log)


def find(function: Callable, *inputs: object) -> Found:
    """Capture a function for these inputs and call it, without compiling anything."""
    graphs: list[int] = []

    def keep(graph: torch.fx.GraphModule, example_inputs: list[Tensor]) -> Callable:
        graphs.append(sum(node.op.startswith("call") for node in graph.graph.nodes))
        return graph

    torch.compiler.reset()
    with break_log() as log:
        torch.compile(function, backend=keep)(*inputs)
    return Found(graphs, log)


# --8<-- [end:find]


@contextmanager
def break_log() -> Iterator[list[str]]:
    """The entries that TORCH_LOGS=graph_breaks would print, without the tracebacks."""
    entries: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: entries.append(readable(record.getMessage()))  # type: ignore[method-assign]
    before = LOG.level, LOG.propagate, LOG.handlers
    LOG.level, LOG.propagate, LOG.handlers = logging.DEBUG, False, [handler]
    LOG.manager._clear_cache()  # type: ignore[attr-defined]  # loggers remember which levels are on
    try:
        yield entries
    finally:
        LOG.level, LOG.propagate, LOG.handlers = before
        LOG.manager._clear_cache()  # type: ignore[attr-defined]


def readable(entry: str) -> str:
    """An entry up to its tracebacks, without empty lines."""
    for tail in ("User code traceback", "Stack variable source attribution", "Most recent bytecode", "*** While"):
        entry = entry.partition(tail)[0]
    return "\n".join(line.rstrip() for line in entry.splitlines() if line.strip())


def cause(entry: str) -> str:
    """The line of an entry that names the cause: the one to search for."""
    lines = [line.strip().removeprefix("Graph Break Reason: ") for line in entry.splitlines()[1:]]
    around = ("Encountered graph break when attempting", "Failed to handle graph break gracefully")
    return next((line for line in lines if not line.startswith(around)), "")


# --8<-- [start:places]
def in_a_line(x: Tensor) -> Tensor:
    x = x.sin()
    print(end="")
    return x.cos().exp()


def in_a_call(x: Tensor) -> Tensor:
    return outer(x.sin()).exp()


def outer(x: Tensor) -> Tensor:
    return in_a_line(x.abs()).tan()


def in_a_loop(x: Tensor) -> Tensor:
    for _ in range(3):
        x = x.sin()
        print(end="")
    return x.cos().exp()


# --8<-- [end:places]

PLACES = (in_a_line, in_a_call, in_a_loop)


@torch.compiler.disable
def opaque() -> None:
    """Something that Dynamo cannot look into, which takes no time."""


# --8<-- [start:model]
def model(x: Tensor, weights: tuple[Tensor, ...], breaks: int = 0) -> Tensor:
    """Four layers; the first `breaks` of them are interrupted between the activation and the sum."""
    a, b, c, d = weights
    hidden = F.gelu(x @ a)
    if breaks > 0:
        opaque()
    x = normed(x + hidden)
    hidden = F.gelu(x @ b)
    if breaks > 1:
        opaque()
    x = normed(x + hidden)
    hidden = F.gelu(x @ c)
    if breaks > 2:
        opaque()
    x = normed(x + hidden)
    hidden = F.gelu(x @ d)
    if breaks > 3:
        opaque()
    return normed(x + hidden)


def looped(x: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
    """The same, as a loop: one break in it, and the whole function runs eagerly."""
    for weight in weights:
        hidden = F.gelu(x @ weight)
        opaque()
        x = normed(x + hidden)
    return x


def normed(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:])


# --8<-- [end:model]


def summary(name: str, found: Found) -> str:
    """One line of a table."""
    return f"{name:<16} {len(found.log)} in the log   operations by graph: {found.graphs or 'nothing captured'}"


def main() -> None:
    """One break in three places."""
    x = torch.linspace(-1, 2, 32).view(4, 8)

    print("==== places")
    for function in PLACES:
        print(summary(function.__name__, find(function, x)))

    print("==== loop")
    print("\n".join(find(in_a_loop, x).log))

    print("==== explain")
    explained = torch._dynamo.explain(in_a_loop)(x)
    print(f"graph_count {explained.graph_count}, graph_break_count {explained.graph_break_count}")


if __name__ == "__main__":
    main()

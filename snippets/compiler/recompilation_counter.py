"""How many graphs does a function compile, and which guard failed each time?"""

import logging
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch._dynamo.utils import clear_compilation_metrics, get_compilation_metrics


# --8<-- [start:counter]
@dataclass
class Counter:
    """A backend that counts the graphs it gets, and the calls that ran one. What runs them is another backend."""

    inner: str = "eager"
    compiled: int = 0
    ran: int = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable:
        self.compiled += 1
        run = torch._dynamo.lookup_backend(self.inner)(graph, inputs)

        def counted(*arguments: Tensor) -> object:
            self.ran += 1
            return run(*arguments)

        return counted


def count(scene: Callable[[Callable], None]) -> tuple[int, list[str]]:
    """How many graphs a scene compiles, and for each but the first the guard that failed, as the log words it."""
    counter = Counter()
    torch.compiler.reset()
    clear_compilation_metrics()
    scene(partial(torch.compile, backend=counter))
    reasons = [metrics.recompile_reason for metrics in get_compilation_metrics() if metrics.recompile_reason]
    return counter.compiled, [guard_of(reason) for reason in reasons]


# --8<-- [end:counter]
def guard_of(reason: str) -> str:
    """The first line of a reason, without the entry's number before it and the line of source behind it."""
    return reason.splitlines()[0].partition(": ")[2].partition("  #")[0].strip()


@contextmanager
def said() -> Iterable[list[str]]:
    """The warnings that Dynamo logs meanwhile, in place of standard error."""
    logger, messages = logging.getLogger("torch._dynamo.convert_frame"), []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    usual, propagated = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [handler], False
    try:
        yield messages
    finally:
        logger.handlers, logger.propagate = usual, propagated

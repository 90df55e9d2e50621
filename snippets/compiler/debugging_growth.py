"""What a program keeps: graphs, weights, and the graph of each backward."""

import gc
import weakref
from collections.abc import Callable, Iterator

import torch
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch.autograd.function import BackwardCFunction

from snippets.compiler import debugging_bugs
from snippets.compiler.debugging_slow import one_graph


# --8<-- [start:growth]
def growth() -> Iterator[str]:
    """What is kept: graphs by a function's code, weights by nothing, and the graph of a backward by each loss."""
    torch.compiler.reset()
    watched = torch.compile(one_graph, backend="aot_eager", dynamic=False)
    for length in range(2, 14):
        watched(torch.ones(length), 0)
        if length in (2, 9, 13):
            yield f"after {length - 1} lengths: {entries(one_graph)} graphs kept"
    del watched
    yield f"the compiled function deleted: {entries(one_graph)} graphs kept"
    torch.compiler.reset()
    yield f"torch.compiler.reset(): {entries(one_graph)} graphs kept"

    model = debugging_bugs.Block()
    weight = weakref.ref(model.up.weight)
    run = torch.compile(model, backend="aot_eager")
    losses = [run(torch.ones(2, 16)).sum() for _ in range(4)]
    yield f"4 losses in a list: {alive(BackwardCFunction)} graphs for a backward kept"
    losses = [loss.item() for loss in losses]
    yield f"4 numbers in a list: {alive(BackwardCFunction)} graphs for a backward kept"
    del model, run
    gc.collect()
    yield f"the model deleted: its weights are {'kept' if weight() is not None else 'gone'}"


def entries(function: Callable) -> int:
    return len(_debug_get_cache_entry_list(function.__code__))


def alive(kind: type) -> int:
    gc.collect()
    return sum(issubclass(type(found), kind) for found in gc.get_objects())


# --8<-- [end:growth]

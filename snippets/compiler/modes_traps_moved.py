"""Inputs of a CUDA graph that move: read at the old address, copied, or recorded again."""

from functools import partial

import torch

from snippets.compiler.modes_traps_recordings import double, graphed, launches, recordings
from snippets.validation.timing import captured, measure

MIB = 2**20


# --8<-- [start:moved]
def moved_by_hand(device: torch.device) -> tuple[float, float]:
    """A graph recorded by hand, then a new input under the same name: what it computes, and what it should."""
    first = x = torch.full((4,), 1.0, device=device)
    replay = captured(lambda: double(x))
    x = torch.full((4,), 10.0, device=device)  # `x` is another tensor now, and the graph reads the first one's memory
    return float(replay()[0]), float(double(x)[0]) if first is not x else 0.0


def moved(device: torch.device, static: bool, calls: int = 5) -> tuple[int, int, bool]:
    """Compiled, with a new tensor in each call: recordings, launches of a call, and whether all results are right."""
    function = graphed(double)
    inputs = [torch.full((1024, 1024), float(n), device=device) for n in range(calls + 2)]
    if static:
        for x in inputs:
            torch._dynamo.mark_static_address(x, guard=False)  # a promise: this tensor stays where it is
    with recordings() as recorded:
        right = all(bool((function(x) == 2 * x).all()) for x in inputs)
    return len(recorded), launches(partial(function, inputs[0])), right


def price_of_copying(device: torch.device, mib: int) -> dict[str, float]:
    """GPU seconds of one compiled operation on an input of so many MiB: launched, replayed, replayed without a copy."""
    x = torch.randn(mib * MIB // 4, device=device)
    fixed = x.clone()
    torch._dynamo.mark_static_address(fixed, guard=False)
    torch.compiler.reset()
    calls = {
        "launched": partial(torch.compile(lambda t: t * 2), x),
        "replayed": partial(torch.compile(lambda t: 2 * t, mode="reduce-overhead"), x),
        "replayed, input marked static": partial(torch.compile(lambda t: t + t, mode="reduce-overhead"), fixed),
    }
    return {name: timing.p50 for name, timing in measure(calls, device, "device", rounds=20).items()}


# --8<-- [end:moved]

"""Results of a CUDA graph that the next replay overwrites."""

from collections.abc import Callable

import torch
from torch import Tensor

from snippets.compiler.modes_measured import Call
from snippets.compiler.modes_traps_recordings import double, graphed, plain
from snippets.validation.timing import captured, nothing


# --8<-- [start:overwritten]
def overwritten_by_hand(device: torch.device) -> tuple[float, float]:
    """A result of a graph recorded by hand, before the next replay and after it."""
    x = torch.full((4,), 1.0, device=device)
    replay = captured(lambda: double(x))
    kept = replay()
    before = float(kept[0])
    x.fill_(10.0)
    replay()
    return before, float(kept[0])


def kept_results(
    device: torch.device, warm: int = 0, mend: Callable[[Tensor], Tensor] = lambda y: y, before: Call = nothing
) -> str:
    """Keep the results of four compiled calls, then add them up: the sum, which should be 48, or what is said instead.

    `warm` calls are made before; `mend` is done to each result, and `before` is called before each call.
    """
    function = graphed(double)
    for _ in range(warm):
        function(torch.full((4,), 100.0, device=device))
    results = []
    for n in range(4):
        before()
        results.append(mend(function(torch.full((4,), float(n), device=device))))
    try:
        return f"sum {float(sum(y.sum() for y in results)):.0f}"
    except RuntimeError as error:
        return plain(error)


# --8<-- [end:overwritten]

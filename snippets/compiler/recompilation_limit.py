"""What a call does past the limit of recompilations, and under each stance."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from snippets.compiler.recompilation_counter import Counter, said
from snippets.compiler.recompilation_specialised import double


# --8<-- [start:limit]
def past_the_limit(lengths: Iterable[int]) -> tuple[list[str], list[str]]:
    """What each of several calls did, and what torch said meanwhile. Every length needs a graph of its own."""
    counter, outcomes = Counter(), []
    torch.compiler.reset()
    compiled = torch.compile(double, backend=counter, dynamic=False)
    with said() as messages:
        for length in lengths:
            outcomes.append(outcome(counter, compiled, torch.ones(length)))
    return outcomes, messages


def outcome(counter: Counter, compiled: Callable, x: Tensor) -> str:
    """Whether a call compiled, ran a graph from before, ran eagerly, or raised."""
    before, ran = counter.compiled, counter.ran
    try:
        compiled(x)
    except RuntimeError as error:
        return f"raises {type(error).__name__}"
    return "compiles" if counter.compiled > before else "runs its graph" if counter.ran > ran else "runs eagerly"


# --8<-- [end:limit]
# --8<-- [start:stances]
STANCES = ("default", "eager_on_recompile", "fail_on_recompile", "force_eager")


def stance(name: str) -> list[str]:
    """Compiled for length 5, then under a stance: what the same length does, and what a new one does."""
    counter = Counter()
    torch.compiler.reset()
    compiled = torch.compile(double, backend=counter, dynamic=False)
    compiled(torch.ones(5))
    with torch.compiler.set_stance(name):
        return [outcome(counter, compiled, torch.ones(length)) for length in (5, 6)]


def eager_first(lengths: Iterable[int]) -> list[str]:
    """What calls of different lengths do where the first is not compiled, but only looked at."""
    counter = Counter()
    torch.compiler.reset()
    with torch.compiler.set_stance("eager_then_compile"):
        compiled = torch.compile(double, backend=counter)
        return [outcome(counter, compiled, torch.ones(length)) for length in lengths]


# --8<-- [end:stances]

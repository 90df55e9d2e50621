"""What becomes of a function over several calls. Run `python -m snippets.patterns.compiler_friendly_counts`."""

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch._dynamo.utils import clear_compilation_metrics, get_compilation_metrics

from snippets.compiler.graph_breaks import break_log, cause
from snippets.compiler.recompilation_counter import guard_of
from snippets.patterns.compiler_friendly import TEN, rewrite
from snippets.patterns.compiler_friendly_pair import CALLS, Side, side
from snippets.patterns.compiler_friendly_shapes import CacheUncounted
from snippets.patterns.compiler_friendly_state import Counter
from snippets.patterns.compiler_friendly_structures import answer, exercise


# --8<-- [start:count]
@dataclass
class Counts:
    """What became of a function over its calls."""

    graphs: int = 0
    operations: int = 0  # in all graphs
    breaks: int = 0  # entries of the log
    recompilations: int = 0
    guards: int = 0  # of all graphs
    eager: int = 0  # calls in which no graph ran
    pieces: list[int] = field(default_factory=list)  # how many graphs ran in each call
    made: list[int] = field(default_factory=list)  # how many were captured in each call
    reasons: list[str] = field(default_factory=list)  # of the breaks, and what guard failed first


@torch.no_grad()
def count(side: Side) -> Counts:
    """Make the calls of one side and count. Graphs run as they were captured: nothing is compiled."""
    found = Counts()

    def keep(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable:
        found.made[-1] += 1
        found.operations += sum(node.op.startswith("call") for node in graph.graph.nodes)

        def run(*arguments: Tensor) -> object:
            found.pieces[-1] += 1
            return graph(*arguments)

        return run

    torch.compiler.reset()
    clear_compilation_metrics()
    call, inputs = side(lambda function: torch.compile(function, backend=keep))
    with break_log() as log:
        for arguments in inputs:
            found.pieces.append(0)
            found.made.append(0)
            call(*arguments)
    compiled = [one for one in get_compilation_metrics() if one.guard_count is not None]  # else it was given up
    guards = [one.recompile_reason for one in compiled if one.recompile_reason]
    found.graphs = sum(found.made)
    found.breaks, found.recompilations, found.eager = len(log), len(guards), found.pieces.count(0)
    found.guards = sum(one.guard_count for one in compiled)
    found.reasons = [*map(cause, log), *map(guard_of, guards)]
    return found


# --8<-- [end:count]


def both(name: str) -> tuple[Counts, Counts]:
    """The counts of a pair."""
    pair = rewrite(name)
    pair.forget()
    before = count(pair.before)
    pair.forget()
    return before, count(pair.after)


def table(found: dict[str, tuple[Counts, Counts]]) -> None:
    """Print both counts of each pair."""
    head = "".join(f"{name:>12}" for name in ("graphs", "breaks", "recompiled", "guards", "operations", "eagerly"))
    print(f"{'':<18}{head}   of {CALLS} calls")
    for name, pair in found.items():
        for which, one in zip(("before", "after"), pair, strict=True):
            shown = one.graphs, one.breaks, one.recompilations, one.guards, one.operations, one.eager
            print(f"{f'{name}, {which}':<18}" + "".join(f"{number:>12}" for number in shown))


def quiet() -> None:
    """Without the warnings that the first sides earn."""
    for name in ("torch._dynamo.convert_frame", "torch._dynamo.variables.tensor"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message="Dynamo does not know how to trace")


def main() -> None:
    """Count both sides of each pair, then those without a break with a limit that is never reached."""
    quiet()
    found = {name: both(name) for name in TEN}

    print("==== counts")
    table(found)

    print("==== reasons")
    for name, (before, _) in found.items():
        for reason in list(dict.fromkeys(before.reasons))[:2]:
            print(f"{name:<10} {reason}"[:110].rstrip())

    print("==== limit")
    with torch._dynamo.config.patch(recompile_limit=64):
        for name, (before, after) in found.items():
            if not before.breaks:
                pair = rewrite(name)
                pair.forget()
                raised = count(pair.before)
                print(
                    f"{name:<10} graphs, limit 64:{raised.graphs:>4}   after the rewrite:{after.graphs:>3}"
                    f"   guards:{raised.guards:>6} and {after.guards}"
                )

    print("==== alone")
    tokens = [(torch.randn(2, 1, 16),) for _ in range(CALLS)]
    for name, module in (("cache without the integer", CacheUncounted(16)), ("counter that nothing reads", Counter())):
        one = count(side(module, tokens))
        print(f"{name:<28} graphs:{one.graphs:>2}   recompiled:{one.recompilations:>2}   eagerly:{one.eager:>2}")

    print("==== exercise")
    inputs = [(torch.randn(2, 6, 4), torch.tensor([length % 6 + 1, 6])) for length in range(CALLS)]
    table({"exercise": (count(side(exercise, inputs)), count(side(answer, inputs)))})


if __name__ == "__main__":
    main()

"""Derivatives that a forward takes for itself, and functions with a backward of their own."""

from collections import defaultdict
from collections.abc import Iterator

from ..calls import Derivative, Value
from ..findings import Finding
from ..graphs import Captured
from ..lines import Line
from ..trace import Trace

ROWS = 4  # derivatives of parts of one result that are worth a batched call


def one_by_one(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Several derivatives of one result: each walks the same graph from its end to its start."""
    of_result: dict[int, list[Derivative]] = defaultdict(list)
    for one in trace.derivatives:
        for number in {whole(trace, result).id for result in one.results}:
            of_result[number].append(one)
    for group in of_result.values():
        several = len({one.by for one in group}) > 1
        if len(group) < (2 if several else ROWS):
            continue
        yield Finding(
            "wasted",
            "Derivatives of one result are taken one by one",
            where_apart(group),
            f"{len(group)} calls of autograd.grad walk the graph of one result",
            "give torch.autograd.grad all inputs at once, as a tuple"
            if several
            else "torch.autograd.grad with is_grads_batched=True, or torch.func.vmap: one walk for all rows",
            "compiler/what-compile-does.md#what-is-slow",
            kernels=len(group) - 1,
        )


def whole(trace: Trace, value: Value) -> Value:
    """What a value is a part, or the sum of a part, of."""
    maker = trace.made_by(value)
    while maker is not None and maker.name in ("sum", "mean"):
        value = maker.inputs[0]
        maker = trace.made_by(value)
    return trace.root(value)


def where_apart(group: list[Derivative]) -> tuple[Line, ...]:
    """The lines at which the calls part, and the line of the calls."""
    stacks = [one.stack for one in group]
    depth = next((at for at, lines in enumerate(zip(*stacks, strict=False)) if len(set(lines)) > 1), -1)
    return tuple(dict.fromkeys([*(stack[depth] for stack in stacks), *(stack[-1] for stack in stacks)]))


def cycles(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """A result that a torch.autograd.Function stores in its `ctx`: it refers to its own graph."""
    for line in trace.cycles:
        yield Finding(
            "kept-graph",
            "A result refers to its own graph",
            (line,),
            "the function stores its result in ctx, and the result holds ctx: both stay in memory until Python's "
            "garbage collector runs",
            "ctx.save_for_backward(…)",
            "validation/memory.md#alive",
            saves=sum(kept.bytes for kept in trace.saved),
        )

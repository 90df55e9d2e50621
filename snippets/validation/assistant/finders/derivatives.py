"""Derivatives that a forward takes for itself, and functions with a backward of their own."""

from collections import defaultdict
from collections.abc import Collection, Iterator

from ..calls import Derivative, Value
from ..findings import Finding, size
from ..graphs import Captured
from ..lines import Line, matching
from ..names import PASSED, POINTWISE
from ..trace import Trace

ROWS = 4  # derivatives of parts of one result that are worth a batched call
BATCHED = "one torch.autograd.grad with is_grads_batched=True, or torch.func.vmap or jacrev"
OF_ROWS = f"{BATCHED}; or of the sum, where each row depends on a row of the input alone"


def one_by_one(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Several derivatives of one result: each walks the same graph from its end to its start."""
    of_result: dict[int, list[Derivative]] = defaultdict(list)
    for one in trace.derivatives:
        for number in {part_of(trace, result)[0] for result in one.results}:
            of_result[number].append(one)
    for group in of_result.values():
        same = len({one.by for one in group}) == 1
        alike = same and len({kind_of(trace, one) for one in group}) == 1
        if len(group) < (ROWS if same and not alike else 2):
            continue
        yield Finding(
            "wasted",
            "Derivatives of one result are taken one by one",
            where_apart(group),
            f"{len(group)} calls of autograd.grad walk the graph of one result",
            "all calls give the same: call torch.autograd.grad once, and pick from what it gives"
            if alike
            else (OF_ROWS if all(is_row(trace, one.results[0]) for one in group) else BATCHED)
            if same
            else "give torch.autograd.grad all inputs at once, as a tuple",
            "compiler/what-compile-does.md#what-is-slow",
            kernels=len(group) - 1,
        )


def kind_of(trace: Trace, one: Derivative) -> tuple:
    """What is alike for derivatives of the same part of a result in the same direction."""
    return tuple(part_of(trace, value) for value in (*one.results, *one.along))


def is_row(trace: Trace, value: Value) -> bool:
    """Whether a value is one entry along the first dimension, or a sum of it."""
    maker = trace.makers.get(value.id)
    while maker is not None and maker.name in ("sum", "mean"):
        maker = trace.makers.get(maker.inputs[0].id)
    return maker is not None and maker.name == "getitem" and type(maker.arguments[1]) is int


def part_of(trace: Trace, value: Value) -> tuple:
    """The number of what a value is a part or a sum of, and how it comes of that; of ones, their shape alone."""
    steps: list[str] = []
    maker = trace.makers.get(value.id)
    while maker is not None and maker.inputs and maker.name in PASSED | {"sum", "mean"}:
        steps.append(
            f"{maker.name} {maker.arguments} {[one.id for one in maker.inputs[1:]]} "
            f"{[one.id for one in maker.outputs].index(value.id)}"
        )
        value = maker.inputs[0]
        maker = trace.makers.get(value.id)
    if maker is not None and maker.name in ("ones_like", "ones", "new_ones"):
        return maker.name, value.shape
    return value.id, tuple(steps)


def where_apart(group: list[Derivative]) -> tuple[Line, ...]:
    """The lines at which the calls part, or the line of the loop that makes them, and the line of the calls."""
    depth = 0
    for depth, lines in enumerate(zip(*(one.stack for one in group), strict=False)):
        if len({one.where[depth][0] for one in group}) > 1:
            depth -= 1
            break
        if len(set(lines)) > 1:
            break
    return tuple(dict.fromkeys([*(one.stack[depth] for one in group), *(one.stack[-1] for one in group)]))


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


def saved_again(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Tensors that a torch.autograd.Function saves beside those that they are pointwise functions of."""
    total = sum(kept.bytes for kept in trace.saved)
    by_kind: dict[type, list[tuple[list[Value], list[Value]]]] = defaultdict(list)
    for kind, values in trace.contexts:
        every = [*{one.id: one for one in values}.values()]
        if spare := computable(trace, every):
            by_kind[kind].append((every, spare))
    for kind, pairs in by_kind.items():
        saved, spared = (sum(one.bytes for pair in pairs for one in pair[place]) for place in (0, 1))
        if spared < max(OF_FUNCTION * saved, OF_ALL * total):
            continue
        every, spare = max(pairs, key=lambda pair: sum(one.bytes for one in pair[1]))
        numel = max(one.numel for one in spare)
        yield Finding(
            "saved",
            "A function saves what it can compute again",
            where_saved(trace, kind, spare),
            f"{kind.__name__} saves {len(every)} tensors, and {len(spare)} of them are pointwise functions of the "
            f"other{'s' * (len(every) - len(spare) > 1)}: {size(spared)} of the {size(total)} kept for backward",
            f"save {'that one' if len(every) - len(spare) == 1 else 'those'} alone, and compute the rest in backward; "
            f"if backward asks only where, save a bool mask alone, {size(numel)} for the largest",
            "validation/memory.md#alive",
            saves=2 * spared,
            kernels=0,
        )


OF_FUNCTION, OF_ALL = 0.25, 0.05  # of the bytes that a function saves, and of all that is kept
DRAWN = frozenset({"dropout", "alpha_dropout"})
SMALLER = 8  # times: what is so much smaller is saved as well, for next to nothing


def computable(trace: Trace, values: list[Value]) -> list[Value]:
    """Of what a function saves, what it can compute of the rest."""
    kept, spare = {one.id: one for one in values}, []
    for one in sorted(values, key=lambda value: -value.id):
        others = kept.keys() - {one.id}
        if not one.grad and one.numel > 1 and others and follows(trace, one, others):
            spare.append(kept.pop(one.id))
    return spare


def follows(trace: Trace, value: Value, others: Collection[int]) -> bool:
    """Whether a value is computed point by point of others, and of what is far smaller."""
    todo, seen, found = [value], set(), False
    while todo:
        one = todo.pop()
        maker = trace.makers.get(one.id)
        if one is not value and (one.id in others or SMALLER * one.numel <= value.numel):
            found |= one.id in others
            continue
        if maker is None or maker.writes or maker.name not in (POINTWISE - DRAWN) | PASSED or len(seen) > 50:
            return False
        if maker.index not in seen:
            seen.add(maker.index)
            todo += maker.inputs
    return found


def where_saved(trace: Trace, kind: type, spare: list[Value]) -> tuple[Line, ...]:
    """The lines that save, and those that compute what is saved in vain."""
    methods = [vars(kind).get(name) for name in ("forward", "setup_context")]
    codes = [one.__func__.__code__ for one in methods if hasattr(getattr(one, "__func__", None), "__code__")]
    lines = [line for code in codes for line in matching(code, r"\bsave_for_backward\(|\b(ctx|context)\.\w+\s*=[^=]")]
    made = [trace.makers[one.id].line for one in sorted(spare, key=lambda value: value.id)]
    return tuple(dict.fromkeys([*lines[:1], *made]))

"""Derivatives that a forward takes for itself, and functions with a backward of their own."""

from collections import defaultdict
from collections.abc import Collection, Iterator

from ..calls import Call, Derivative, Value
from ..findings import Finding, size
from ..graphs import Captured
from ..lines import Line, matching
from ..names import PASSED, POINTWISE
from ..trace import Trace

ROWS = 4  # derivatives of parts of one result that are worth a batched call
BATCHED = "one torch.autograd.grad with is_grads_batched=True, or torch.func.vmap or jacrev"
OF_SUM = "one torch.autograd.grad of the sum, torch.autograd.grad(u.sum(), x)"
OF_ROWS = f"where each row depends on a row of the input alone, {OF_SUM}; else {BATCHED[4:]}"
OWN = f"each turn reads its own row of the derivative alone: {OF_SUM}, gives all rows, where no row depends on others"
COLUMNS = (
    "each turn reads its own row of the derivative alone: one torch.autograd.grad for each column, of that column's "
    "sum, gives all rows, where no row depends on others"
)
AGAIN = "; then, of that, of the sum of the column that is differentiated again"


def one_by_one(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Several derivatives of one result: each walks the same graph from its end to its start."""
    told: set[int] = set()
    groups = by_result(trace)
    for key, group in groups.items():
        same = len({one.by for one in group}) == 1
        alike = same and len({kind_of(trace, one) for one in group}) == 1
        if len(group) < (ROWS if same and not alike else 2) or told & {*map(id, group)}:
            continue
        own, left = ("", 1) if alike else of_own_rows(trace, group)
        later = [more for other, more in groups.items() if own and follows_on(other, key)]
        every = [group, *(more for more in later if all(own_row(trace, one) is not None for one in more))]
        told |= {id(one) for more in every for one in more}
        calls = sum(map(len, every))
        yield Finding(
            "wasted",
            "Derivatives of one result are taken one by one",
            tuple(dict.fromkeys(line for more in every for line in where_apart(more))),
            f"{calls} calls of autograd.grad walk the graph of one result",
            "all calls give the same: call torch.autograd.grad once, and pick from what it gives"
            if alike
            else own + AGAIN * (len(every) > 1)
            if own
            else (OF_ROWS if all(is_row(trace, one) for one in group) else BATCHED)
            if same
            else "give torch.autograd.grad all inputs at once, as a tuple",
            "compiler/what-compile-does.md#what-is-slow",
            kernels=calls - left * len(every),
        )


def by_result(trace: Trace) -> dict[tuple, list[Derivative]]:
    """The derivatives of each result; one of a derivative has its result and how often it was differentiated."""
    came_of: dict[int, tuple] = {}
    found: dict[tuple, list[Derivative]] = defaultdict(list)
    for one in trace.derivatives:
        keys = dict.fromkeys(part_of(trace, result)[0] for result in one.results)
        keys = dict.fromkeys(came_of.get(key, (key,)) for key in keys)
        for key in keys:
            found[key].append(one)
        if len(keys) == 1 and own_row(trace, one) is not None:
            (key,) = keys
            came_of |= {value.id: (*key, one.where) for value in one.given}
    return found


def follows_on(key: tuple, first: tuple) -> bool:
    """Whether a result is a derivative of another."""
    return len(key) > len(first) and key[: len(first)] == first


def of_own_rows(trace: Trace, group: list[Derivative]) -> tuple[str, int]:
    """What gives all rows, in how many calls, where each derivative is of a row or a number in it, and read there."""
    rows = {own_row(trace, one) for one in group}
    if None in rows or len(rows) == 1:
        return "", 1
    shares = {share_of_row(trace, one) for one in group}
    if shares == {1} and len(rows) == len(group):
        return OWN, 1
    return (COLUMNS, -(-len(group) // len(rows))) if shares == {0} else ("", 1)


def share_of_row(trace: Trace, one: Derivative) -> int | None:
    """1 for a derivative of a row, or of its sum, 0 for one of a single number of several in it."""
    value = one.results[0]
    summed = trace.makers[value.id].name == "sum"
    while trace.makers[value.id].name == "sum":
        value = trace.makers[value.id].inputs[0]
    root = trace.root(value)
    if root.shape and value.numel * root.shape[0] == root.numel:
        return 1
    return 0 if root.shape and value.numel == 1 and not summed else None


def of_ones(trace: Trace, one: Derivative) -> bool:
    """Whether a derivative is taken of the sum of its result."""
    return all(part_of(trace, value)[0] in ("ones_like", "ones", "new_ones") for value in one.along)


def own_row(trace: Trace, one: Derivative) -> int | None:
    """The row that a derivative is taken of, if it is of that alone, and no other row of the derivative is read."""
    if len(one.results) != 1 or len(one.by) != 1 or len(one.given) != 1 or not of_ones(trace, one):
        return None
    row = row_of(trace, one.results[0])
    read = trace.users[one.given[0].id]
    rows = {first_index(user) for user in read if user.name == "getitem" and user.inputs[0].id == one.given[0].id}
    return row if row is not None and rows == {row} and all(user.name == "getitem" for user in read) else None


def row_of(trace: Trace, value: Value) -> int | None:
    """The one entry along the first dimension of the outermost tensor that a value, or a sum of it, is a part of."""
    row, averaged, maker = None, False, trace.makers.get(value.id)
    while maker is not None and maker.inputs and maker.name in PASSED | {"sum", "mean"}:
        if averaged and maker.name in ("getitem", "unbind"):
            return None
        averaged |= maker.name == "mean"
        row = first_index(maker) if maker.name == "getitem" else row
        if maker.name == "unbind" and len(maker.outputs) == maker.inputs[0].shape[0]:
            row = [one.id for one in maker.outputs].index(value.id)
        value = maker.inputs[0]
        maker = trace.makers.get(value.id)
    return row


def first_index(call: Call) -> int | None:
    """The place that an index picks along the first dimension, as a number or as a slice of one."""
    index = call.arguments[1] if len(call.arguments) > 1 else None
    index = index[0] if isinstance(index, tuple) and index else index
    if isinstance(index, slice) and type(index.start) is int and index.stop == index.start + 1:
        return index.start
    return index if type(index) is int else None


def kind_of(trace: Trace, one: Derivative) -> tuple:
    """What is alike for derivatives of the same part of a result in the same direction."""
    return tuple(part_of(trace, value) for value in (*one.results, *one.along))


def is_row(trace: Trace, one: Derivative) -> bool:
    """Whether the result is one entry along the first dimension, or a sum of it."""
    maker = trace.makers.get(one.results[0].id)
    while maker is not None and maker.name == "sum":
        maker = trace.makers.get(maker.inputs[0].id)
    row = maker is not None and maker.name == "getitem" and type(maker.arguments[1]) is int
    return row and of_ones(trace, one)


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

"""What depends on sizes only and is made again at each call."""

from collections.abc import Iterator

from ..calls import Call
from ..findings import Finding, in_order, size
from ..graphs import Captured
from ..names import words
from ..rewrites import rewrite
from ..trace import Trace

FEW, LARGE = 4, 2**14  # kernels that are worth a buffer, and bytes for which two are
PART = 0.05  # of the forward's kernels or bytes
FILLS = words("zeros ones empty full new_zeros new_ones new_full zeros_like ones_like full_like")
RANDOM = words("rand randn randint randperm rand_like randn_like randint_like bernoulli multinomial normal uniform")


def from_sizes(trace: Trace, calls: list[Call]) -> bool:
    """Whether no call reads an input, a weight or a random number, however indirectly."""
    return makers_from_sizes(trace, calls) is not None


def makers_from_sizes(trace: Trace, calls: list[Call]) -> list[Call] | None:
    """All calls that make something of sizes only; None where anything else is read."""
    todo, seen = list(calls), {call.index: call for call in calls}
    while todo:
        call = todo.pop()
        if call.name in RANDOM or not call.outputs or call.facts.get("by list"):
            return None
        for value in call.inputs:
            maker = trace.makers.get(value.id)
            if value.origin != "made" or maker is None:
                return None
            if maker.index not in seen:
                seen[maker.index] = maker
                todo.append(maker)
    return [seen[index] for index in sorted(seen)]


def constants(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Positions, masks and tables: the last call of each that reads sizes only, and is read by one that does not."""
    constant: dict[int, list[Call]] = {}
    for call in trace.eager:
        makers = makers_from_sizes(trace, [call]) if made_of_constants(trace, call, constant) else None
        if makers is not None:
            constant[call.index] = makers
    moved = sum(call.moved for call in trace.eager) or 1
    for index, makers in constant.items():
        call = trace.calls[[one.index for one in trace.calls].index(index)]
        users = {user.index for value in call.outputs for user in trace.users.get(value.id, ())}
        kernels = sum(one.kernels for one in makers)
        large = kernels >= 2 and call.out is not None and call.out.bytes >= LARGE
        heavy = large and sum(one.moved for one in makers) >= PART * moved
        worth = heavy or (kernels >= FEW and kernels >= PART * trace.kernels)
        filled = all(one.name in FILLS for one in makers if one.kernels)
        if users <= constant.keys() or not worth or filled or not same_function(makers):
            continue
        yield Finding(
            "constant",
            "A constant is made again at each call",
            in_order(makers, call),
            f"{kernels} kernels make {size(call.out.bytes if call.out else 0)} that depend on sizes only",
            "make it once, as a buffer of the module",
            "compiler/what-compile-does.md#what-is-slow",
            saves=sum(one.moved for one in makers),
            kernels=kernels,
            rewrites=rewrite(trace, call, [], None),
        )


def made_of_constants(trace: Trace, call: Call, constant: dict[int, list[Call]]) -> bool:
    """Whether all that a call reads was found constant before."""
    return all((maker := trace.makers.get(one.id)) is not None and maker.index in constant for one in call.inputs)


def same_function(makers: list[Call]) -> bool:
    """Whether no library makes it: its author cannot keep it."""
    return not any("library" in call.inside for call in makers)

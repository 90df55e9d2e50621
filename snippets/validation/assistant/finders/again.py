"""The same results, computed again: in each turn of a loop, in each layer, at each use."""

import re
from collections import defaultdict
from collections.abc import Iterator

from ..calls import Call
from ..findings import Finding, size
from ..graphs import Captured
from ..lines import Line
from ..trace import Trace

FEW, PART = 8, 0.05  # kernels that are worth a finding, and the part of the forward's kernels, bytes or work
RANDOM = re.compile(r"rand|normal|dropout|bernoulli|multinomial|exponential|uniform|poisson")


def repeated(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Calls that compute what a call before them computed, of the same tensors; joined to what they are a part of."""
    by_place: dict[Line, list[Call]] = defaultdict(list)
    first = same_again(trace)
    for part in connected(trace, {index: call for index, (call, _) in first.items()}):
        by_place[shared_line(part)] += part
    whole_moved, whole_flops = (sum(getattr(call, what) for call in trace.eager) or 1 for what in ("moved", "flops"))
    for line, calls in by_place.items():
        kernels, moved, flops = (sum(getattr(call, what) for call in calls) for what in ("kernels", "moved", "flops"))
        part = max(moved / whole_moved, flops / whole_flops)
        waits = sum(bool(call.facts.get("by mask")) for call in calls)
        if waits or part >= PART or (kernels >= FEW and kernels >= PART * trace.kernels):
            callers = [common_line(call, first[call.index][1]) for call in calls]
            callers += [first[call.index][1].line for call in calls if call.facts.get("by mask")]
            below = [one for call in calls for one in call.stack[call.stack.index(line) + 1 :]]
            also = f", for which the host waits {waits} times" if waits else ""
            yield Finding(
                "again",
                "The same results are computed again",
                tuple(dict.fromkeys([line, *callers, *below]))[:8],
                f"{kernels} kernels, {size(moved)} and {flops / 1e6:.1f} MFLOP{also}, of tensors that have not changed "
                "since the last time",
                "compute it once, before the loop or the layers, and pass the result on",
                "compiler/what-compile-does.md#what-is-slow",
                saves=moved,
                kernels=kernels,
            )


def common_line(call: Call, earlier: Call) -> Line:
    """The line of the function that came to both: there the work is asked for again."""
    depth = sum(one[0] == other[0] for one, other in zip(call.where, earlier.where, strict=False))
    return call.stack[max(0, depth - 1)]


def same_again(trace: Trace) -> dict[int, tuple[Call, Call]]:
    """By the number of a call: it, and an earlier one with its function, arguments and tensors."""
    first: dict[tuple, Call] = {}
    same = dict(trace.twins)  # by a value: the first with its numbers
    written: dict[int, int] = defaultdict(int)  # by a root: how often a view of it was written
    found = {}
    for call in trace.eager:
        if call.writes:
            written[trace.root(call.inputs[0]).id] += 1
        if not repeatable(call):
            continue
        given = tuple((same.get(one.id, one.id), written[trace.root(one).id]) for one in call.inputs)
        key = call.name, given, repr(call.arguments), repr(sorted(call.named.items()))
        if key not in first:
            first[key] = call
            continue
        same |= {new.id: same.get(old.id, old.id) for new, old in zip(call.outputs, first[key].outputs, strict=False)}
        found[call.index] = call, first[key]
    return found


def repeatable(call: Call) -> bool:
    """Whether a call gives the same for the same inputs; what torch.func differentiates is asked for anew."""
    drawn = any(RANDOM.search(op.name) for op in call.forward) or call.name.startswith(("empty", "new_empty"))
    copied = (
        call.facts.get("by list") or call.facts.get("by torch.func") or call.inside & {"checkpoint", "distributions"}
    )
    return bool(call.outputs) and not (call.writes or drawn or copied)


def connected(trace: Trace, calls: dict[int, Call]) -> list[list[Call]]:
    """Calls of which one reads what another gave, together; views, which cost nothing, are left out at the end."""
    part_of: dict[int, list[Call]] = {}
    for call in calls.values():
        makers = [maker.index for one in call.inputs if (maker := trace.makers.get(one.id))]
        parts = {id(part_of[index]): part_of[index] for index in makers if index in part_of}
        joined = [*(one for part in parts.values() for one in part), call]
        part_of |= {one.index: joined for one in joined}
    parts = {id(part): part for part in part_of.values()}.values()
    return [kept for part in parts if (kept := [call for call in part if call.kernels])]


def shared_line(calls: list[Call]) -> Line:
    """The innermost line under which all calls were made."""
    stacks = [call.stack for call in calls]
    depth = next((at for at, lines in enumerate(zip(*stacks, strict=False)) if len(set(lines)) > 1), None)
    depth = min(map(len, stacks)) if depth is None else depth
    return stacks[0][max(0, depth - 1)]

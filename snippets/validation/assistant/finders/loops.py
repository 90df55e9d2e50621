"""Loops that launch many small kernels, and what to do with them, by how their turns depend on each other."""

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from torch.utils._pytree import tree_leaves

from ..calls import Call
from ..findings import Finding, in_order, size
from ..graphs import Captured
from ..lines import Line
from ..names import NUMBERS, POINTWISE, PRODUCTS, words
from ..rewrites import Rewrite
from ..trace import Trace
from .constants import from_sizes
from .lists import of_list
from .pairs import of_pairs
from .readiness import MADE_ON_HOST
from .recurrence import change_of, recurrence, scanned
from .sizes import MASK, SUPPRESSED, makes_masks, selecting
from .turns import FOLDED, as_a_function, ends_here, foldable, lines_in, members, runs_joined, with_loop

SMALL = 2**22  # bytes: fewer take a large GPU less time than the host takes to launch


def small_kernels(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Loops that launch many kernels, each too small to keep the host ahead."""
    for groups in loops(trace):
        calls = sorted((call for group in groups for call in group), key=lambda call: call.index)
        own = members(trace, groups)
        turns, kernels = len(own) or turns_of(groups), sum(call.kernels for call in calls)
        largest = max(groups, key=lambda group: sum(call.kernels for call in group))
        small = kernels >= 8 and sum(call.moved for call in calls) / kernels <= SMALL
        if any(call.inside - {"library"} for call in calls) or not small:
            continue
        known, (paired, rewrites) = of_list(trace, calls), of_pairs(trace, calls)
        why = OF_LIST if known else OF_PAIRS if paired else of_members(own, kernels) or loop_of(trace, groups, turns)
        if why:
            change, weight = known or paired, "finding"
            if not change:
                change, weight, rewrites = loop_change(trace, groups, calls, turns)
            if 2 * kernels >= trace.kernels and kernels >= MOST and weight == "note":
                change, weight = f"{change}{as_a_graph(groups) if COMPILED.search(change) else ''}", "finding"
            yield Finding(
                "small-kernels",
                "A loop of kernels too small to keep the host ahead",
                with_loop(in_order(calls, largest[0]), largest, turns),
                f"{turns} turns, {kernels} kernels, {size(sum(call.moved for call in calls) / kernels)} each; {why}",
                change,
                "compiler/what-compile-does.md#what-is-slow",
                kernels=kernels - kernels // turns,
                weight=weight,
                rewrites=rewrites,
            )


OF_LIST = "each turn takes the tensors of one place in a list"
OF_PAIRS = "each turn multiplies two of the same features"
MOST = 256  # kernels of which a loop is worth a finding whatever its turns do, where it has half of all
COMPILED = re.compile("compile the step( that is left)?$")
WORTH = 8  # kernels that one call for all turns saves, where each turn has weights of its own


def as_a_graph(groups: list[list[Call]]) -> str:
    """How to compile a step for a CUDA graph, which takes one size only."""
    run = [again(group) for group in groups if group[0].kernels]
    steady = all(len({tuple(one.shape for one in call.inputs) for call in group}) == 1 for group in run)
    once = "" if steady else "once all turns have the same sizes, "
    return f", {once}with mode='reduce-overhead': a CUDA graph launches the kernels of a step at once"


def of_members(own: list[list[Call]], kernels: int) -> str:
    """That turns have weights of their own, where one call for all is worth it."""
    small = all(call.moved <= SMALL for part in own for call in part)
    worth = own and small and kernels - kernels // len(own) >= WORTH
    return "each turn has weights of its own, of the same shapes" if worth else ""


FUSED = "torch.optim's with fused=True, which updates all parameters in one kernel"


def loops(trace: Trace) -> list[list[list[Call]]]:
    """The calls of each loop, by place: lines whose calls alternate are one loop, and it holds the loops inside."""
    joined: dict[int, list[list[list[Call]]]] = defaultdict(list)
    places = ((activation, group) for (_, activation), groups in trace.loops.items() for group in groups)
    for activation, group in sorted(places, key=lambda one: one[1][0].index):
        ends = [one[-1].index for one in joined[activation][-1]] if joined[activation] else []
        if len(group) >= 4 and ends and group[0].index <= max(ends):
            joined[activation][-1].append(group)
        elif len(group) >= 4:
            joined[activation].append([group])
    found, taken = [], set()
    for groups in sorted((one for each in joined.values() for one in each), key=lambda one: -sum(map(len, one))):
        indices = {call.index for group in groups for call in group}
        if not indices & taken:
            found.append(groups)
        taken |= indices
    return found


def turns_of(groups: list[list[Call]]) -> int:
    """How often a loop turns: what an inner loop calls runs several times between the same two calls of the outer."""
    kinds = [again(group) for group in runs_joined(groups)]
    outer = [kind for kind in kinds if not any(inside(kind, other) for other in kinds)]
    return max(map(len, outer or kinds))


def inside(group: list[Call], outer: list[Call]) -> bool:
    """Whether most turns of a group make several calls of another; a branch that few turns take is no outer loop."""
    if len(outer) < 4 or len(group) < 2 * len(outer):
        return False
    places = [call.index for call in group]
    starts = [bisect_left(places, call.index) for call in outer]
    often = [end - start for start, end in pairwise(starts)]
    return 4 * sum(one >= 2 for one in often) >= 3 * len(often)


def by_numbers(trace: Trace, calls: list[Call]) -> bool:
    """Whether turns read each other through the host: of numbers that it read, it makes what a later number needs."""
    given: dict[Line, set[str]] = defaultdict(set)  # what the same line makes tensors of
    for call in calls:
        if call.name in MADE_ON_HOST and not call.inputs:
            given[call.line].add(repr((call.arguments[:1], call.named.get("data"))))
        given[call.line] |= {str(one.id) for one in call.inputs if one.origin == "found"}
    read: set[float] = set()
    begun, own, made = False, {call.index for call in calls}, set()
    first, last = calls[0].index, calls[-1].index
    for call in (one for one in trace.calls if first <= one.index <= last):
        needs_one = any(value.id in made for value in call.inputs)
        if call.name in NUMBERS - {"__bool__"}:
            if needs_one:
                return True
            begun, read = True, read | call.facts.get("numbers", set())
        elif needs_one or (begun and call.index in own and holds(call, read, len(given[call.line]) > 1)):
            made |= {value.id for value in call.outputs}
    return False


def holds(call: Call, read: set[float], varies: bool) -> bool:
    """Whether a call makes a tensor of numbers that the host has read, or computed of them."""
    numbers = {one for one in tree_leaves((call.arguments[:2], call.named)) if isinstance(one, (int, float))}
    if call.name in MADE_ON_HOST and not call.inputs:
        return varies or bool(numbers & read)
    if varies and any(one.origin == "found" for one in call.inputs):  # by NumPy, or another library
        return True
    if call.name == "setitem":
        return len(call.inputs) == 1 and any(one in read for one in call.arguments[2:] if isinstance(one, (int, float)))
    return call.name in ("full", "new_full", "full_like", "fill") and bool(numbers & read)


def needs(trace: Trace, later: Call, earlier: Call) -> bool:
    """Whether a call reads what another gave, through whatever lies between."""
    todo, seen = [later], set()
    while todo:
        for value in todo.pop().read:
            maker = trace.makers.get(value.id)
            if maker is earlier:
                return True
            if maker is not None and maker.index > earlier.index and maker.index not in seen:
                seen.add(maker.index)
                todo.append(maker)
    return False


def dependent(trace: Trace, groups: list[list[Call]]) -> bool:
    """Whether most turns' work reads what the turn before gave; a sum of all turns alone is no such work."""
    run = [group for group in groups if group[0].kernels]
    products = [group for group in run if group[0].name in PRODUCTS or group[0].name.endswith("_cell")]
    return any(carries(trace, group) for group in products or run)


def carries(trace: Trace, group: list[Call]) -> bool:
    """Whether most of the same calls read what the one before gave; to write into one tensor is not to read it."""
    if group[0].name == "setitem":
        return False
    links = [needs(trace, later, earlier) for earlier, later in pairwise(again(group))]
    return 2 * sum(links) > len(links)  # between the layers around a loop there are a few, too


def again(group: list[Call]) -> list[Call]:
    """Of the layers that a turn may have, the first: where weights return, the calls that use the same.

    Where no weight returns but an input does, as in an ensemble, the last.
    """
    weights = [frozenset(one.id for one in call.inputs if one.origin == "parameter") for call in group]
    same = [call for call, own in zip(group, weights, strict=True) if own == weights[0]]
    starts = [at for at, call in enumerate(group) if read_of(call) == read_of(group[0])]
    if len(same) > 1:
        return same
    ensemble = all(weights) and 8 <= len(starts) < len(group) <= 3 * len(starts)
    return [*(group[at - 1] for at in starts[1:]), group[-1]] if ensemble else group


def read_of(call: Call) -> tuple[int, ...]:
    """What a call reads, besides weights."""
    return tuple(one.id for one in call.inputs if one.origin != "parameter")


def loop_change(
    trace: Trace, groups: list[list[Call]], calls: list[Call], turns: int
) -> tuple[str, str, tuple[Rewrite, ...]]:
    """What to do with a loop, the weight, and the change as a copy can have it."""
    cells = [again(group) for group in groups if group[0].name in CELLS]
    if any(updates(call) for call in calls):
        products = any(call.name in PRODUCTS for call in calls if call.kernels)
        also = ", and one batched product for all of a shape" if products else ""
        return f"for an optimizer, {FUSED}; for other updates, torch._foreach_ functions{also}", "finding", ()
    if by_numbers(trace, calls):
        return "each turn reads the one before, through numbers on the host: keep them on the device", "note", ()
    if from_sizes(trace, calls):
        return "the result depends on sizes only: make it once, as a buffer of the module", "finding", ()
    if own := members(trace, groups):
        return STACKED if any(len(part) > 1 for part in own) else ONE_STACK, "finding", ()
    if cells and not any(feeds_back(trace, cell) for cell in cells):
        kind = cells[0][0].name.split("_")[0].upper()
        return f"nn.{kind} runs all turns as one cuDNN call, if nothing else reads the state in between", "finding", ()
    on = [again(group) for group in groups if group[0].kernels and carries(trace, group)]
    found = recurrence(trace, on)
    if found is not None and (change := change_of(trace, found, len(on[0]))):
        early = [group for group in groups_before(trace, groups, calls) if found.weighted]
        first = f"; before the loop, for all turns at once, what reads no state ({lines_in(early)})" if early else ""
        return f"{change}{first}", "finding", scanned(trace, found)
    return *change_of_turns(trace, groups, calls, turns, summed=found is not None), ()


ONE_STACK = (
    "no turn reads another: stack the weights, and do all turns in one batched call, torch.bmm or torch.baddbmm with "
    "the biases"
)
STACKED = (
    "no turn reads another: stack the weights, and do each layer of all turns in one batched call, torch.baddbmm; or "
    "torch.func.stack_module_state and torch.vmap"
)


def products_of(groups: list[list[Call]]) -> list[list[Call]]:
    return [group for group in groups if group[0].kernels and group[0].name in PRODUCTS]


def groups_before(trace: Trace, groups: list[list[Call]], calls: list[Call]) -> list[list[Call]]:
    """The products that read no state, if they are a good part of the work."""
    early = [group for group in products_of(groups) if free(trace, again(group))]
    return early if is_worth(early, calls) else []


def groups_after(trace: Trace, groups: list[list[Call]], calls: list[Call]) -> list[list[Call]]:
    """The products that read a state and that no later turn reads, if they are a good part of the work."""
    first = min(groups, key=lambda group: group[0].index)
    starts, own = [call.index for call in again(first)], {call.index for call in calls}
    late = [group for group in products_of(groups) if not free(trace, again(group))]
    late = [group for group in late if ends_here(trace, group, starts, own)]
    return late if is_worth(late, calls) else []


def is_worth(groups: list[list[Call]], calls: list[Call]) -> bool:
    work = sum(call.flops for group in groups for call in group)
    return work > 0.1 * sum(call.flops for call in calls)


def change_of_turns(
    trace: Trace, groups: list[list[Call]], calls: list[Call], turns: int, summed: bool
) -> tuple[str, str]:
    """What to do with turns that read each other, or do not, and the weight: a recurrence alone is a note.

    Args:
        summed: whether nothing but a sum of all turns goes on from one to the next.
    """
    run, products = [group for group in groups if group[0].kernels], products_of(groups)
    if not summed and dependent(trace, groups):
        return split_of(trace, groups, calls)
    if makes_masks(trace, calls):
        return MASK, "finding"
    if batch_statistics(calls):
        change = "each turn normalizes with the statistics of its own batch, which one batched call would change"
        return f"{change}: compile the step", "note"
    if any(len({call.inputs[0].shape for call in again(group) if call.inputs}) > 1 for group in products or run):
        if prefix := next((CUMULATIVE[group[0].name] for group in run if prefixes(trace, group)), ""):
            change = f"each turn reads the start, or the end, of one tensor: {prefix} once, and a turn picks from it"
            return change, "finding"
        change = (
            "torch._foreach_ functions for the list of tensors"
            if {call.name for call in calls if call.kernels} <= POINTWISE
            else "pad them to one size and mask the rest, or scatter_reduce for the rows of all turns"
        )
        return f"no turn reads another, but their sizes differ: {change}", "finding"
    if by_parts(groups):
        how = "pick the weights of all turns by one index tensor, and do all turns in one batched call, torch.bmm"
        return f"no turn reads another: {how}", "finding"
    if foldable(trace, groups, calls, turns):
        return FOLDED, "finding"
    name = as_a_function(trace, groups, calls, turns)
    how = f", such as torch.vmap of {name}" if name else ""
    return f"no turn reads another: stack what the turns read, and do all of them in one batched call{how}", "finding"


def split_of(trace: Trace, groups: list[list[Call]], calls: list[Call]) -> tuple[str, str]:
    """What turns that read each other can leave to one call before and after them, and the weight."""
    chosen = [selecting(trace, call) for call in calls if call.name == "index" and call.facts.get("by mask")]
    if chosen:
        how = SUPPRESSED if SUPPRESSED in chosen else chosen[0]
        return f"each turn reads the one before, and selects by a mask: {how}", "note"
    early, late = groups_before(trace, groups, calls), groups_after(trace, groups, calls)
    before = f"what does not read the state ({lines_in(early)}) before the loop" if early else ""
    after = f"what no later turn reads ({lines_in(late)}) after the loop" if late else ""
    both = " and ".join(filter(None, (before, after)))
    rest = f"compute {both}, for all turns at once, and compile the step that is left" if both else "compile the step"
    return f"each turn reads the one before: {rest}", "finding" if both else "note"


CUMULATIVE = {  # by what reduces each part: what reduces all parts that start, or end, alike
    "sum": "torch.cumsum",
    "mean": "torch.cumsum, divided by the counts,",
    "prod": "torch.cumprod",
    "amax": "torch.cummax",
    "amin": "torch.cummin",
    "logsumexp": "torch.logcumsumexp",
}


def batch_statistics(calls: list[Call]) -> bool:
    """Whether turns share a batch norm in training mode: each has statistics of its own, and changes those it keeps."""
    often = Counter(
        (call.line, tuple(one.id for one in call.inputs if one.origin in ("parameter", "buffer")))
        for call in calls
        if call.name == "batch_norm" and (call.named.get("training") or True in call.arguments[5:6])
    )
    return max(often.values(), default=0) > 1


def prefixes(trace: Trace, group: list[Call]) -> bool:
    """Whether a reduction reads more and more of one tensor, or less and less; parts of a split do not overlap."""
    if group[0].name not in CUMULATIVE or len({trace.root(call.inputs[0]).id for call in group}) > 1:
        return False
    sizes = [call.inputs[0].numel for call in group]
    ordered = all(one < other for one, other in pairwise(sizes)) or all(one > other for one, other in pairwise(sizes))
    return ordered and sum(sizes) > trace.root(group[0].inputs[0]).numel


CELLS = ("gru_cell", "lstm_cell", "rnn_tanh_cell", "rnn_relu_cell")


def updates(call: Call) -> bool:
    """Whether a call writes to a parameter, or puts another tensor into its place."""
    return (call.writes or call.name == "set") and bool(call.inputs) and call.inputs[0].origin == "parameter"


def feeds_back(trace: Trace, cells: list[Call]) -> bool:
    """Whether a cell's input comes from the turn before, as a decoder's does: then no call runs all turns."""
    return any(needs(trace, replace(later, inputs=later.inputs[:1]), earlier) for earlier, later in pairwise(cells))


def free(trace: Trace, group: list[Call]) -> bool:
    """Whether no turn's product reads what an earlier turn gave."""
    first = group[0].index
    todo, seen = [(call, before.index) for before, call in pairwise(group)], set()
    while todo:
        call, before = todo.pop()
        for value in call.inputs:
            maker = trace.makers.get(value.id)
            if maker is None or maker.index < first or maker.index in seen:
                continue
            if maker.index <= before:
                return False
            seen.add(maker.index)
            todo.append((maker, before))
    return True


def loop_of(trace: Trace, groups: list[list[Call]], turns: int) -> str:
    """What kind of loop runs these calls; nothing for the layers of a model, each of which has weights of its own."""
    if any(updates(call) for group in groups if len(group) >= 4 for call in group):
        return "each turn updates a parameter"
    weighted = [
        [frozenset(one.id for one in call.inputs if one.origin == "parameter") for call in group]
        for group in groups
        if len(group) >= 4
    ]
    weighted = [weights for weights in weighted if any(weights)]
    often = [weights for weights in weighted if 8 * len(set(weights)) <= len(weights)]
    if often:
        return f"each turn uses {'a part of ' if by_parts(groups) else ''}the same weights"
    if few_alike(trace, groups):
        return "each turn uses the same weights"
    if not weighted and turns >= 8:
        return "no turn has weights of its own"
    shared = [
        group
        for group in groups
        if len(group) >= 4 and any(call.inputs and call.inputs[0].origin != "parameter" for call in group)
    ]
    for group in shared:
        alone = [any(one.origin == "parameter" for one in call.inputs) for call in group]
        often = Counter(map(read_of, group)).most_common(1)[0][1]
        if all(alone) and not dependent(trace, groups) and often >= 4 and 3 * often >= len(group):
            return "all turns read the same input"
    return ""


PICKS = words("getitem index select narrow index_select")


def by_parts(groups: list[list[Call]]) -> bool:
    """Whether turns read weights in parts alone, each the one that a number picks."""
    read = [group for group in groups if len(group) >= 4 and weights_of(group[0])]
    same = [group for group in read if 8 * len({frozenset(weights_of(call)) for call in group}) <= len(group)]
    return bool(same) and all(group[0].name in PICKS for group in same)


FEW = 4  # turns that are worth a batched call, where each runs layers of the same weights


def few_alike(trace: Trace, groups: list[list[Call]]) -> bool:
    """Whether a few turns, all of one size, run the same layers, and none reads another."""
    run = [group for group in groups if group[0].kernels]
    layers = [group for group in run if group[0].name in PRODUCTS and len(again(group)) >= FEW]
    calls = sorted((call for group in groups for call in group), key=lambda call: call.index)
    same = [group for group in layers if len({frozenset(weights_of(call)) for call in group}) == 1]
    if not same or len(same) < len(layers) or not all(weights_of(group[0]) for group in same):
        return False
    sizes = all(len({call.inputs[0].shape for call in group if call.inputs}) == 1 for group in run)
    small = all(call.moved <= SMALL for group in run for call in group)
    tied = any(carries(trace, group) for group in run) or by_numbers(trace, calls) or batch_statistics(calls)
    return sizes and small and not tied


def weights_of(call: Call) -> list[int]:
    return [one.id for one in call.inputs if one.origin == "parameter"]


def tables(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """A look-up in each of many tables of one width, where one table with offsets needs one."""
    told: set[int] = set()
    for groups in trace.loops.values():
        for group in (one for one in groups if one[0].name == "embedding" and len(one) >= MANY):
            if group[0].index in told:
                continue
            weights = [next((one for one in call.inputs if one.origin == "parameter"), None) for call in group]
            apart = None not in weights and len({one.id for one in weights if one is not None}) == len(group)
            sizes = {
                (call.inputs[0].shape, call.out.shape, call.out.dtype) for call in group if call.inputs and call.out
            }
            limited = any(call.named.get("max_norm") is not None for call in group)
            library = any(call.inside - {"library"} for call in group)
            small = 2 * max(call.out.bytes for call in group if call.out) <= SMALL
            tied = any(needs(trace, later, earlier) for earlier, later in pairwise(group))
            if apart and len(sizes) == 1 and small and not (limited or library or tied):
                told |= {call.index for call in group}
                yield Finding(
                    "small-kernels",
                    "A look-up in each of many tables",
                    (group[0].line,),
                    f"{len(group)} tables of one width, a kernel each",
                    "keep all rows in one table, and add to each column of indices the place where its rows begin, a "
                    "buffer: one look-up gives all",
                    "compiler/what-compile-does.md#what-is-slow",
                    kernels=len(group) - 2,
                )


MANY = 8  # tables that are worth it

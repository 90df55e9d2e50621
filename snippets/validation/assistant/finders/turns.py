"""The turns of a loop: how many, at which line, of which function, and which have weights of their own."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection
from itertools import pairwise

from ..calls import Call, Value
from ..lines import Line
from ..names import PRODUCTS, REDUCTIONS, words
from ..trace import Trace
from .constants import RANDOM
from .kernels import READS
from .sizes import unpacks

MEMBERS = 5  # turns that are worth one call, where each has weights of its own
BATCHED = words("linear matmul bmm einsum baddbmm addmm mv")
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")  # functions of their own before Python 3.12


def runs_joined(groups: list[list[Call]]) -> list[list[Call]]:
    """The groups, those of a loop that runs several times, as of a method that two lines call, joined to one."""
    by_place: dict[tuple, list[list[Call]]] = defaultdict(list)
    for group in groups:
        by_place[group[0].line, group[0].where[-1][1], group[0].name].append(group)
    found = []
    for same in by_place.values():
        joined = sorted((call for group in same for call in group), key=lambda call: call.index)
        of = {call.index: number for number, group in enumerate(same) for call in group}
        changes = sum(of[one.index] != of[other.index] for one, other in pairwise(joined))
        found += [joined] if 2 * changes < len(joined) else same  # else they are of the same turn
    return found


def frame_of(group: list[Call], turns: int) -> int:
    """The depth of the function that has the loop: what its turns call is a call of its own in each."""
    depths = range(len(group[0].where))
    fits = (depth for depth in reversed(depths) if 2 * len({call.where[depth][0] for call in group}) <= turns)
    return next(fits, 0)


def with_loop(lines: tuple[Line, ...], group: list[Call], turns: int) -> tuple[Line, ...]:
    """The lines, and the loop's own where its turns do all in another function."""
    line = group[0].stack[frame_of(group, turns)]
    known = any((one.file, one.number) == (line.file, line.number) for one in lines[:8])
    return lines[:8] if known else (lines[0], line, *lines[1:7])


def as_a_function(trace: Trace, groups: list[list[Call]], calls: list[Call], turns: int) -> str:
    """The function that each turn is a call of, if torch.vmap can take it: it may not wait, draw, write or derive."""
    group = max(groups, key=lambda one: sum(call.kernels for call in one))
    inner = group[0].stack[frame_of(group, turns) + 1 :]
    drawn = any(call.name in RANDOM | {"dropout", "batch_norm"} for call in calls)
    unnamed = not inner or inner[0].function in (*COMPREHENSIONS, "<lambda>")
    if unnamed or waits(calls) or drawn or derives(trace):
        return ""
    name = "the module" if inner[0].function == "forward" else inner[0].function
    return "" if writes_outside(trace, calls) else name


def waits(calls: list[Call]) -> bool:
    return any(call.name in READS or call.facts.get("by mask") or unpacks(call) for call in calls)


def derives(trace: Trace) -> bool:
    """Whether autograd.grad is called, which cannot be mapped; jacrev alone can."""
    return any("grad(" in one.stack[-1].text for one in trace.derivatives if one.stack)


FOLDED = (
    "no turn reads another, and all use the same weights: one batched call does them all: fold the dimension of the "
    "loop into the batch (x.flatten(0, 1), or torch.cat for a list), and unflatten the result"
)
ROWS = words("index index_select gather scatter scatter_add index_add index_put take_along_dim flip roll cdist")
ALONG = REDUCTIONS | words("softmax log_softmax cumsum cumprod sort argsort topk cat stack")
UNBATCHED = {"linear": 1, "conv1d": 2, "conv2d": 3, "conv3d": 4}  # by layers: the dimensions of one row of data


def foldable(trace: Trace, groups: list[list[Call]], calls: list[Call], turns: int) -> bool:
    """Whether the rows of all turns can be one batch: the same weights in each turn, and no row reads another."""
    weighted = [(group, [weights_in(call) for call in group]) for group in groups if group[0].kernels]
    weighted = [(group, used) for group, used in weighted if any(used)]
    same = all(min(Counter(used).values()) >= max(2, turns // 2) for _, used in weighted)
    layers = [group[0] for group, _ in weighted if group[0].name in UNBATCHED or group[0].name in BATCHED]
    if not layers or not same or derives(trace) or waits(calls) or writes_outside(trace, calls):
        return False
    rows = all(len(call.inputs[0].shape) > UNBATCHED.get(call.name, 1) for call in layers)
    return rows and not any(mixes_rows(call) for call in calls if call.kernels)


def weights_in(call: Call) -> frozenset[int]:
    return frozenset(one.id for one in call.inputs if is_weight(one))


def mixes_rows(call: Call) -> bool:
    """Whether what a call gives for one row along the first dimension may depend on other rows."""
    data = [one for one in call.inputs if one.origin not in ("parameter", "buffer")]
    if not data or call.out is None:
        return False
    if call.name in ROWS or (call.out.numel == 1 and data[0].numel > 1):
        return True
    if call.name in PRODUCTS and len(data) >= 2:
        return call.name == "einsum" or max(len(one.shape) for one in data) <= 2
    first = call.name in ("cat", "stack")
    given = [call.named.get("dim", 0 if first else None), *call.arguments[1:]]
    dims = {each for one in given for each in (one if isinstance(one, tuple) else (one,)) if type(each) is int}
    return call.name in ALONG and bool(dims & {0, -len(data[0].shape)})


def members(trace: Trace, groups: list[list[Call]]) -> list[list[Call]]:
    """The products of each turn, where no turn reads another and each has weights of its own, all of the same shapes.

    None where there are fewer turns than are worth it, where a product is large, or none of those that batch.
    """
    calls = sorted((call for group in groups for call in group), key=lambda call: call.index)
    products = [call for call in calls if call.name in PRODUCTS]
    fits = all(call.name in BATCHED and call.inputs and call.out for call in products)
    if (
        not products
        or not fits
        or any(call.name == "batch_norm" for call in calls)
        or writes_outside(trace, calls, "setitem")
    ):
        return []
    parts = apart(trace, products)
    weights = [{trace.root(one).id for call in part for one in call.inputs if is_weight(one)} for part in parts]
    shapes = {tuple((call.name, *(one.shape for one in call.inputs)) for call in part) for part in parts}
    own = all(weights) and sum(map(len, weights)) == len(set().union(*weights))
    return parts if own and len(parts) >= MEMBERS and len(shapes) == 1 else []


def is_weight(value: Value) -> bool:
    return value.origin == "parameter"


def writes_outside(trace: Trace, calls: list[Call], allowed: str = "") -> bool:
    """Whether a call of another name than is allowed writes to what was there before the loop."""
    writes = [call for call in calls if call.writes and call.name != allowed]
    makers = [trace.made_by(call.inputs[0]) for call in writes if call.inputs]
    return any(maker is None or maker.index < calls[0].index for maker in makers)


def apart(trace: Trace, products: list[Call]) -> list[list[Call]]:
    """The products that read each other's results, together: the layers of each turn where turns are independent."""
    part_of: dict[int, list[Call]] = {}
    for call in products:
        parts = {id(part_of[index]): part_of[index] for index in behind(trace, call, products[0].index, part_of)}
        joined = [*(one for part in parts.values() for one in part), call]
        part_of |= {one.index: joined for one in joined}
    return [*{id(part): part for part in part_of.values()}.values()]


def behind(trace: Trace, call: Call, first: int, ends: Collection[int]) -> set[int]:
    """Those of some calls that a call reads, through whatever was made since the first."""
    todo, seen, found = [call], set(), set()
    while todo:
        for value in todo.pop().read:
            maker = trace.makers.get(value.id)
            if maker is None or maker.index < first or maker.index in seen:
                continue
            seen.add(maker.index)
            if maker.index in ends:
                found.add(maker.index)
            else:
                todo.append(maker)
    return found


def ends_here(trace: Trace, group: list[Call], starts: list[int], own: Collection[int]) -> bool:
    """Whether no later turn reads what the calls of a group give.

    Args:
        starts: where turns begin, by the numbers of calls.
        own: the numbers of all calls of the loop.
    """
    for call in group:
        following = starts[bisect_right(starts, call.index) :][:1]
        todo, seen = [*call.outputs], set()
        while todo and following:
            for user in trace.users[todo.pop().id]:
                if user.index in own and user.index >= following[0]:
                    return False
                if user.index not in seen and user.index < following[0]:
                    seen.add(user.index)
                    todo += user.outputs
    return True


def lines_in(groups: list[list[Call]]) -> str:
    """The lines of some groups: "line 3", or "lines 3, 5"."""
    numbers = sorted({group[0].line.number for group in groups})
    return f"line{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"

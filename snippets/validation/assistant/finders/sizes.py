"""Numbers that the host reads of a tensor to make a size, a bound or a place of them, and what to do instead."""

import functools
import re
from collections import defaultdict
from collections.abc import Iterable

from torch.utils._pytree import tree_leaves

from ..calls import Call
from ..lines import Line
from ..names import FILLS, NUMBERS, PASSED, words
from ..trace import Trace

SIZED = FILLS | words(
    "arange linspace eye rand randn getitem setitem index narrow split split_with_sizes tensor_split expand view "
    "reshape repeat repeat_interleave pad one_hot bincount unflatten interpolate topk"
)
BOUND = "a fixed upper bound as the size, and a mask for what does not count"
KNOWN = f"take the number as an argument, from the loader, which knows it; or {BOUND}"
MASK = "a mask of lengths needs no number on the host: torch.arange(T, device=...) < lengths[:, None]"
PLACE = "index_select with the place as a tensor of one dimension, place.view(1), reads it on the device"
SUPPRESSED = "a fixed number of the best by topk, and one batched_nms of torchvision for all classes and images"
SELECTED = "keep all rows, and give those that do not count a weight of zero; or a fixed number of the best by topk"
MANY = 4  # numbers read at one line, as of a loop over lengths


def unpacks(call: Call) -> bool:
    """Whether a call makes a size, a bound or a place of a number in a tensor, which the host has to read for it."""
    numbers = [one for one in call.read if not one.shape and not one.dtype.is_floating_point]
    read = any(op.name == "_local_scalar_dense" for op in call.forward)
    return read and call.name not in NUMBERS and bool(numbers) and numbers[-1].device == call.read[0].device


def instead(trace: Trace, call: Call) -> str:
    """What to do instead of reading numbers that become a size, a bound or a place; empty where they do not."""
    if unpacks(call):
        users = [call]
        if call.name == "index":
            return PLACE
    else:
        users = becoming_sizes(trace, call)
    if not users:
        return ""
    often = sum(one.line == call.line and (one.name == call.name or unpacks(one)) for one in trace.calls) >= MANY
    if (often or call.name == "tolist") and any(fills(trace, user) for user in users):
        return MASK
    return KNOWN if of_inputs(trace, call) else BOUND


def of_inputs(trace: Trace, call: Call) -> bool:
    """Whether the numbers of a call come of inputs alone, so that who makes these knows them."""
    todo, seen = [one for one in call.inputs if not one.shape or call.name == "tolist"], set()
    while todo and len(seen) < 100:
        value = todo.pop()
        maker = trace.makers.get(value.id)
        if value.origin in ("parameter", "buffer"):
            return False
        if maker is not None and maker.index not in seen:
            seen.add(maker.index)
            todo += maker.read
    return not todo


def makes_masks(trace: Trace, calls: list[Call]) -> bool:
    """Whether calls do nothing but write one number up to a bound that the host has read."""
    run = [call for call in calls if call.kernels and call.name not in NUMBERS]
    plain = all(call.name in FILLS | PASSED | MASKING for call in run)
    return plain and any(instead(trace, call) == MASK for call in (*calls, *reads_of(trace, calls)))


MASKING = words("setitem fill zero cat pad stack sub rsub")


def reads_of(trace: Trace, calls: list[Call]) -> list[Call]:
    """The list that was read before a loop, of which its turns may take their numbers."""
    before = [one for one in trace.calls if one.name == "tolist" and one.index < calls[0].index]
    return before[-1:]


def fills(trace: Trace, call: Call) -> bool:
    """Whether a call makes, or writes, the same number everywhere."""
    if call.name == "getitem":
        after = [user for value in call.outputs for user in trace.users[value.id]]
        return bool(after) and all(user.name in ("fill", "zero") for user in after)
    return call.name in FILLS or bool(call.name == "setitem" and call.facts.get("one value"))


def becoming_sizes(trace: Trace, call: Call) -> list[Call]:
    """The calls that take a number that the host has read, or one more or less, as a size or a bound.

    A name that the line of the one gives, the line of the other has: the same number alone may be chance.
    """
    if call.name not in NUMBERS - {"__bool__"}:
        return []
    numbers = {one for one in call.facts.get("numbers", ()) if type(one) is int}
    names = {name for line in call.stack for name in given_by(line)}
    found: dict[int, Call] = {}
    for size in {number + more for number in numbers for more in (-1, 0, 1)}:
        for user in by_size(trace).get(size, ()):
            near = user.line == call.line or any(names & words_of(line) for line in user.stack)
            if user.index > call.index and near:
                found[user.index] = user
    return [found[index] for index in sorted(found)]


def by_size(trace: Trace) -> dict[int, list[Call]]:
    """By a number: the calls that take it as a size or a bound."""
    if "by size" not in trace.known:
        found: dict[int, list[Call]] = defaultdict(list)
        for call in trace.calls:
            for size in sizes_in(call) if call.name in SIZED else ():
                found[size].append(call)
        trace.known["by size"] = found
    return trace.known["by size"]


def sizes_in(call: Call) -> set[int]:
    """The whole numbers that a call is given; of an index, those that bound a slice."""
    if call.name not in ("getitem", "setitem", "index"):
        return whole(tree_leaves((call.arguments, call.named)))
    slices = [one for one in tree_leaves(call.arguments[1:2]) if isinstance(one, slice)]
    return whole(bound for one in slices for bound in (one.start, one.stop))


def whole(values: Iterable) -> set[int]:
    return {one for one in values if type(one) is int}


NAMED = re.compile(r"^(?:for\s+)?([\w\s,()*]+?)\s*(?:=(?!=)|\bin\b)|\bfor\s+([\w\s,()]+?)\s+in\b")


@functools.cache
def given_by(line: Line) -> frozenset[str]:
    """The names that a line gives, such as `n` in `n = int(x)` or `for n in x.tolist()`."""
    return frozenset(
        word for match in NAMED.finditer(line.text) for part in match.groups("") for word in words_in(part)
    )


@functools.cache
def words_of(line: Line) -> frozenset[str]:
    return words_in(line.text)


def words_in(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[A-Za-z_]\w*", text))


def selecting(trace: Trace, call: Call) -> str:
    """What to do instead of a selection by a mask, by whether it picks from what was sorted before."""
    value = call.inputs[0]
    for _ in range(200):
        maker = trace.makers.get(value.id)
        if maker is not None and maker.name in ("argsort", "sort", "topk"):
            return SUPPRESSED
        if maker is None or maker.name not in PASSED | {"index"} or not maker.inputs:
            break
        value = maker.inputs[0]
    return SELECTED

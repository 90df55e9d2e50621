"""Decoding that runs the whole sequence again for each new position, of which it reads the last."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise

from ..calls import Call, Value
from ..findings import Finding, in_order
from ..graphs import Captured
from ..names import POINTWISE, PRODUCTS, REDUCTIONS, words
from ..trace import Trace
from .attention import SDPA, scores_of
from .dense import parting

RNNS = words("gru lstm rnn_tanh rnn_relu")
PICKS = words("getitem select narrow")
MASKS = words("masked_fill where add")
TRIANGLES = words("tril triu")
CONVOLVES = frozenset(name for name in PRODUCTS if name.startswith("conv"))
TURNS = 3  # that read the one before


@dataclass(frozen=True)
class Decoding:
    """A sequence that grows turn by turn, and what each turn runs over all of it.

    Attributes:
        grows: the concatenations.
        mixes: the attention, or the recurrent layers, of all turns.
        reads: what picks the last position in each turn.
        moved: bytes, by all that lies between a sequence and the next.
        positions: that were computed.
        needed: that are different.
    """

    grows: tuple[Call, ...]
    mixes: tuple[Call, ...]
    reads: tuple[Call, ...]
    moved: int
    positions: int
    needed: int


def without_cache(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Turns that compute again what a cache of keys and values, or a state, would keep."""
    for one in decodings(trace):
        keep = "each layer's state" if one.mixes[0].name in RNNS else "each layer's keys and values in a static cache"
        trained = trace.backward and one.grows[0].outputs[0].grad
        if trained and one.mixes[0].name not in RNNS:  # what is written in place has no gradient
            keep = "each layer's keys and values"
        often = one.positions / one.needed
        yield Finding(
            "decoding",
            "Each step runs the whole sequence again",
            tuple(dict.fromkeys([parting(one.mixes), one.grows[0].line, *in_order([*one.mixes, *one.reads])])),
            f"{len(one.grows)} turns run {one.positions} positions, {one.needed} of them different: {often:.2g} times "
            "the work; no position changes an earlier one, and only the last is read",
            f"keep {keep}, run the start once, and then the new position alone"
            + ("" if trained else "; all steps then have one size, which one graph serves"),
            "patterns/attention-choose.md#decode",
            saves=int(one.moved * (1 - one.needed / one.positions)),
            kernels=len(one.grows) - 1,
        )


def decodings(trace: Trace) -> list[Decoding]:
    """All of a module, each once."""
    if "decodings" not in trace.known:
        found: dict[int, Decoding] = {}
        for groups in trace.loops.values():
            for calls in groups:
                fresh = calls[0].name == "cat" and calls[0].index not in found
                if fresh and (one := decoding_of(trace, calls)) is not None:
                    found[calls[0].index] = one
        trace.known["decodings"] = [*found.values()]
    return trace.known["decodings"]


def decoding_of(trace: Trace, calls: list[Call]) -> Decoding | None:
    """What the turns between some concatenations run, if all of them run layers that look back over the sequence."""
    mixes, reads, moved, links = [], [], 0, []
    for earlier, later in pairwise(calls):
        dim = grows_along(trace, earlier, later)
        if dim is None:
            continue
        length, way = earlier.outputs[0].shape[dim], trace.between(earlier, later)
        made = {value.id for call in (earlier, *way) for value in call.outputs}
        mixing = [call for call in way if mixes_all(trace, call, length) and reads_keys_of(trace, call, made)]
        picks = [call for call in way if mixing and picks_last(trace, call, length)]
        if not picks or not all(looks_back(trace, call) for call in mixing):
            return None
        if any(mixes_otherwise(call, length) for call in way if call.index < picks[0].index):
            return None
        links.append((earlier, length))
        mixes, reads, moved = [*mixes, *mixing], [*reads, *picks], moved + sum(call.moved for call in way)
    if len(links) < TURNS:
        return None
    first, dim = links[0][0], grows_along(trace, *calls[:2])
    new = calls[1].outputs[0].shape[dim] - first.outputs[0].shape[dim] if dim is not None else 1
    lengths = [links[0][1] - new, *(length for _, length in links)]
    return Decoding(tuple(calls), tuple(mixes), tuple(reads), moved, sum(lengths), lengths[-1])


def grows_along(trace: Trace, earlier: Call, later: Call) -> int | None:
    """The dimension along which a concatenation makes another longer."""
    if not any(trace.root(one).id == earlier.outputs[0].id for one in later.inputs):
        return None
    one, other = earlier.outputs[0].shape, later.outputs[0].shape
    longer = [dim for dim, sizes in enumerate(zip(one, other, strict=False)) if sizes[0] < sizes[1]]
    return longer[0] if len(one) == len(other) and len(longer) == 1 else None


def mixes_all(trace: Trace, call: Call, length: int) -> bool:
    """Whether a call mixes all positions of a sequence of at least this length."""
    shape = call.inputs[0].shape if call.inputs else ()
    if call.name in RNNS or call.name == SDPA[1]:
        return max(shape[:2], default=0) >= length
    if call.name == SDPA[0]:
        return shape[-2] >= length and call.inputs[1].shape[-2] >= length
    square = call.name == "softmax" and len(shape) >= 2 and shape[-1] == shape[-2] >= length
    return square and scores_of(trace, call) is not None


def reads_keys_of(trace: Trace, call: Call, made: Collection[int]) -> bool:
    """Whether keys come of the sequence too; attention to something else changes nothing of what was there before."""
    scores = scores_of(trace, call) if call.name == "softmax" else call
    keys = scores.inputs[1:2] if scores is not None and call.name not in RNNS else call.inputs[:1]
    return any(one.id in made for one in keys)


def looks_back(trace: Trace, call: Call) -> bool:
    """Whether a position gets nothing from later ones."""
    if call.name in RNNS:
        return not (call.named.get("bidirectional") or True in call.arguments[7:8])
    if call.name != "softmax":
        return bool(call.facts.get("causal")) or call.facts.get("mask") == "causal"
    scores = scores_of(trace, call)
    masks = [one for one in trace.between(scores, call) if one.name in MASKS] if scores is not None else []
    return any(one.facts.get("mask") == "causal" or from_triangle(trace, one) for one in masks)


def from_triangle(trace: Trace, call: Call) -> bool:
    """Whether a mask was made of a triangle."""
    todo, seen = [maker for one in call.inputs if (maker := trace.made_by(one)) is not None], set()
    while todo and len(seen) < 20:
        maker = todo.pop()
        if maker.index in seen:
            continue
        seen.add(maker.index)
        if maker.name in TRIANGLES:
            return True
        if maker.name in POINTWISE:
            todo += [one for value in maker.inputs if (one := trace.made_by(value)) is not None]
    return False


def picks_last(trace: Trace, call: Call, length: int) -> bool:
    """Whether a call picks the last position of a sequence of which nothing else reads any."""
    if call.name not in PICKS or call.out is None or call.out.numel * length > call.inputs[0].numel:
        return False
    given = call.arguments[1] if call.name == "getitem" else call.arguments[2:3]
    given = given if isinstance(given, tuple) else (given,)
    ends = {one.start if isinstance(one, slice) else one for one in given if type(one) in (slice, int)}
    last = {-1, *(size - 1 for size in call.inputs[0].shape if size >= length)}
    return bool(ends & last) and only_picked(trace, call.inputs[0], length)


def only_picked(trace: Trace, value: Value, length: int) -> bool:
    users = trace.users[value.id]
    alone = all(user.name in PICKS and user.outputs[0].numel * length <= value.numel for user in users)
    return alone and value.id not in trace.returned


def mixes_otherwise(call: Call, length: int) -> bool:
    """Whether a call reduces along a sequence, or convolves it: no cache of keys and values holds that."""
    if call.name in CONVOLVES:
        return True
    shapes = [one.shape for one in (*call.inputs[:1], *call.outputs[:1])]
    return call.name in REDUCTIONS and length in shapes[0] and length not in shapes[-1]

"""Many small objects of torch.distributions, made and asked one by one, where one of a batch does."""

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from ..calls import Call
from ..findings import Finding, in_order, size
from ..graphs import Captured
from ..names import PRODUCTS
from ..trace import Trace
from .loops import SMALL, loops, needs, turns_of
from .turns import COMPREHENSIONS

FEW, KERNELS, PART = 4, 16, 0.05  # turns, kernels, and the part of the forward's kernels that are worth a finding
FAMILY = re.compile(r"\b([A-Z]\w+)\(")


def distributions(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Loops whose turns make a distribution of their own, or ask one."""
    by_function: dict[tuple, list[Call]] = defaultdict(list)
    for groups in loops(trace):
        calls = sorted((call for group in groups for call in group), key=lambda call: call.index)
        run = [call for call in calls if call.kernels]
        mostly = 2 * sum("distributions" in call.inside for call in run) > len(run)
        small, turns = all(call.moved <= SMALL for call in run), turns_of(groups)
        if mostly and small and turns >= FEW and not in_turn(trace, groups, turns):
            by_function[turns, around(calls[0])] += calls
    for (turns, _), found in by_function.items():
        calls = sorted(found, key=lambda call: call.index)
        kernels = sum(call.kernels for call in calls)
        if kernels < max(KERNELS, PART * trace.kernels):
            continue
        first = next(call for call in calls if "distributions" in call.inside)
        starts = [call for call in calls if same_place(call, first) and call.inputs]
        shapes = {tuple(one.shape for one in call.inputs) for call in starts}
        weights = any(call.name in PRODUCTS for call in calls)
        yield Finding(
            "small-kernels",
            "Distributions are made and asked one by one",
            in_order(calls, first),
            f"{turns} turns, {kernels} kernels, {size(sum(call.moved for call in calls) / kernels)} each",
            batched(first, shapes) + "; the products of all turns in one, too" * weights,
            "compiler/what-compile-does.md#what-is-slow",
            kernels=kernels - kernels // turns,
        )


def in_turn(trace: Trace, groups: list[list[Call]], turns: int) -> bool:
    """Whether a turn begins with what the one before gave, as where an action is drawn after the other."""
    starts = next((group for group in groups if group[0].kernels and len(group) == turns), [])
    return any(needs(trace, later, earlier) for earlier, later in pairwise(starts))


def around(call: Call) -> tuple[int, ...]:
    """The activations of the functions that a call is in, without comprehensions."""
    named = zip(call.stack, call.where, strict=True)
    return tuple(activation for line, (activation, _) in named if line.function not in (*COMPREHENSIONS, "<genexpr>"))


def same_place(call: Call, other: Call) -> bool:
    """Whether two calls are of one line, and do the same there."""
    return call.line == other.line and call.name == other.name and call.where[-1][1] == other.where[-1][1]


def batched(first: Call, shapes: set[tuple]) -> str:
    """What one distribution is made of, by the shapes of the parameters of all turns."""
    named = FAMILY.search(first.line.text)
    family = named[1] if named else "distribution"
    if len(shapes) == 1:
        return f"one {family} of a batch: stack the parameters of all turns, and call log_prob and entropy once"
    logits = [of_turn[0] for of_turn in shapes]
    if family == "Categorical" and len({one[-1:] for one in logits}) > 1:
        rows = len({one[:-1] for one in logits}) > 1
        return "one Categorical of a batch: pad the logits of all turns to one width with -inf, " + (
            "concatenate them, and split what it gives" if rows else "stack them, and call log_prob and entropy once"
        )
    return f"one {family} of a batch: concatenate the parameters of all turns, and split what it gives"

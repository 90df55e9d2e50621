"""Loops over a list of parameters, buffers or gradients, which torch._foreach_ functions take at once."""

import re
from collections import defaultdict
from itertools import pairwise

from ..calls import Call
from ..names import POINTWISE, REDUCTIONS, words
from ..trace import Trace
from .turns import behind

MANY = 8  # tensors of a list that are worth one call
STEPS = POINTWISE | REDUCTIONS | words("copy zero fill lerp clone set zeros_like stack cat rdiv")
OPTIMIZES = words("addcdiv addcmul sqrt rsqrt")
MEASURES = words("norm pow square abs sum mean amax max")
AVERAGES = words("mul add sub lerp rsub")
TORCHS = re.compile(r"\bclip_grad_|\.step\(|\bzero_grad\(|\bupdate_parameters\(")  # which do so themselves
FOREACH = "torch._foreach_ functions for the list of tensors"
BY_NAME = {
    "zero": "torch._foreach_zero_(tensors)",
    "fill": "torch._foreach_zero_(tensors), then torch._foreach_add_(tensors, value)",
    "copy": "torch._foreach_copy_(targets, sources)",
    "mul": "torch._foreach_mul_(tensors, factor)",
    "clamp": "torch._foreach_clamp_min_ and _foreach_clamp_max_",
}
ANEW = {"mul": "torch._foreach_mul(tensors, factor)", "clamp": "torch._foreach_clamp_min and _foreach_clamp_max"}
OF_ALL = f"{FOREACH}: torch._foreach_norm(tensors), and one norm of what it gives, stacked"
SUMMED = f"{FOREACH}: torch._foreach_norm(tensors{{}}), then .sum() of what it gives, stacked"


def of_list(trace: Trace, calls: list[Call]) -> str:
    """What does all turns of a loop at once, where each changes or measures the tensors of one place in a list."""
    run = [call for call in calls if call.kernels]
    if not run or any(call.name not in STEPS for call in run) or TORCHS.search(run[0].line.text):
        return ""
    own = {call.index for call in calls}
    first, several = [], False
    for call in run:
        large = [one for one in call.inputs if one.numel > 1 or one.origin == "parameter"]
        roots = [trace.root(one) for one in large]
        given = [one for one in roots if getattr(trace.makers.get(one.id), "index", -1) not in own]
        if any(one.origin not in ("parameter", "buffer", "found") for one in given):
            return ""  # an activation
        first += [one.id for one in given[:1]]
        several |= len({one.id for one in given}) > 1
    if len(set(first)) < MANY or len(run) > len(set(first)) * MANY:
        return ""
    if accumulates(trace, run):
        return ""
    writes = any(call.writes or call.name == "set" for call in calls)
    return change_of(run, several or reads_pairs(run), writes)


def accumulates(trace: Trace, run: list[Call]) -> bool:
    """Whether a turn reads a tensor, and not a number alone, that the one before gave."""
    by_place: dict[tuple, list[Call]] = defaultdict(list)
    for call in run:
        if call.out is not None and call.out.numel > 1:
            by_place[call.line, call.where[-1][1], call.name].append(call)
    pairs = (pair for same in by_place.values() for pair in pairwise(same))
    return any(behind(trace, later, earlier.index, {earlier.index}) for earlier, later in pairs)


def reads_pairs(run: list[Call]) -> bool:
    """Whether turns add what they make of two tensors."""
    return any(call.name in ("add", "sub") and len(call.inputs) == 2 and call.outputs[0].shape for call in run)


def change_of(run: list[Call], pairs: bool, writes: bool) -> str:
    """Which functions take the list."""
    names = {call.name for call in run}
    if names & OPTIMIZES:
        return ""
    if names <= MEASURES | {"add", "mul", "stack", "sqrt", "div"} and names & MEASURES:
        return measure_of(run)
    if names <= AVERAGES | {"copy", "set", "clone"} and names & AVERAGES and pairs:
        step = "torch._foreach_add(tensors, others, alpha=a) for a step"
        lerp, how = ("_foreach_lerp_", ", in place") if writes else ("_foreach_lerp", "")
        return f"{FOREACH}: torch.{lerp}(targets, sources, 1 - m) for a moving average{how}; {step}"
    by_name = BY_NAME if all(call.writes for call in run) else ANEW
    known = [by_name[name] for name in by_name if name in names]
    return f"{FOREACH}: {known[0]}" if len(names) == 1 and known else FOREACH


def measure_of(run: list[Call]) -> str:
    """Which functions measure the list, where torch._foreach_norm does."""
    own = [call for call in run if call.inputs[0].shape]
    ends = [call for call in own if call.name in REDUCTIONS]
    steps = {call.outputs[0].id for call in own if call.name not in REDUCTIONS}
    if any(call.outputs[0].shape for call in ends) or (steps and steps != {call.inputs[0].id for call in ends}):
        return FOREACH
    of_each = {measure(call) for call in own}
    of_all = {measure(call) for call in run if not call.inputs[0].shape}
    if of_each == {"norm"} and of_all in ({"square"}, {"square", "add"}):
        return f"{OF_ALL}, squared"
    if of_each == {"norm"} and of_all <= {"add"}:
        return SUMMED.format("") if of_all else OF_ALL
    if of_each == {"square", "sum"} and of_all <= {"add"}:
        return f"{OF_ALL}, squared"
    absolute = of_each in ({"abs", "sum"}, {"norm of 1"}) and of_all <= {"add"}
    return SUMMED.format(", 1") if absolute else FOREACH


def measure(call: Call) -> str:
    """What a call measures: its name, a square however it is spelt, and a norm with another order than 2."""
    given = [*call.arguments[1:2], *(call.named[key] for key in ("p", "ord", "exponent") if key in call.named)]
    if call.name == "norm" and (call.kernels > 1 or (given and given[0] not in (None, 2, "fro"))):
        return f"norm of {given[0]}" if call.kernels == 1 else "another norm"
    same = len(call.inputs) == 2 and call.inputs[0].id == call.inputs[1].id
    return "square" if (call.name == "pow" and given == [2]) or (call.name == "mul" and same) else call.name

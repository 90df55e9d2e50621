"""Loops over a list of parameters, buffers or gradients, which torch._foreach_ functions take at once."""

import re

from ..calls import Call
from ..names import POINTWISE, REDUCTIONS, words
from ..trace import Trace

MANY = 8  # tensors of a list that are worth one call
STEPS = POINTWISE | REDUCTIONS | words("copy zero fill lerp clone set zeros_like stack cat rdiv")
OPTIMIZES = words("addcdiv addcmul sqrt rsqrt")
MEASURES = words("norm pow square abs sum mean amax max")
AVERAGES = words("mul add sub lerp rsub")
TORCHS = re.compile(r"\bclip_grad_|\.step\(|\bzero_grad\(|\bupdate_parameters\(")  # which do so themselves
FOREACH = "torch._foreach_ functions for the list of tensors"
BY_NAME = {
    "zero": "torch._foreach_zero_(tensors)",
    "fill": "torch._foreach_zero_(tensors), or a list of numbers with _foreach_copy_",
    "copy": "torch._foreach_copy_(targets, sources)",
    "mul": "torch._foreach_mul_(tensors, factor)",
    "clamp": "torch._foreach_clamp_min_ and _foreach_clamp_max_",
}


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
    return change_of(run, several or reads_pairs(run))


def reads_pairs(run: list[Call]) -> bool:
    """Whether turns add what they make of two tensors."""
    return any(call.name in ("add", "sub") and len(call.inputs) == 2 and call.outputs[0].shape for call in run)


def change_of(run: list[Call], pairs: bool) -> str:
    """Which functions take the list."""
    names = {call.name for call in run}
    if names & OPTIMIZES:
        return ""
    if names <= MEASURES | {"add", "mul", "stack", "sqrt", "div"} and names & MEASURES:
        return f"{FOREACH}: torch._foreach_norm(tensors), and one norm of what it gives, stacked"
    if names <= AVERAGES | {"copy", "set", "clone"} and names & AVERAGES and pairs:
        step = "torch._foreach_add(tensors, others, alpha=a) for a step"
        return f"{FOREACH}: torch._foreach_lerp_(targets, sources, 1 - m) for a moving average, in place; {step}"
    known = [BY_NAME[name] for name in BY_NAME if name in names]
    return f"{FOREACH}: {known[0]}" if len(names) == 1 and known else FOREACH

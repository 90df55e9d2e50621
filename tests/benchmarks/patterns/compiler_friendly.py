"""What each of the ten rewrites gains: a pass of twelve calls, both sides eager and compiled."""

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from snippets.patterns.compiler_friendly import TEN, rewrite
from snippets.patterns.compiler_friendly_pair import Rewrite, Side
from tests.benchmarks.bounds import bound, wall
from tests.benchmarks.case import Call, Case, Point, Results, Variant, Workload

ROWS = {  # where the GPU has work to do: the same functions grow by different powers of the rows
    "cache": 256, "select": 65536, "experts": 2048, "until": 32, "loop": 512,
    "drop": 8192, "state": 16384, "table": 64, "positions": 4096, "keys": 8192,
}  # fmt: skip


# How many times as fast the rewrite is when it is compiled, over a side as it was written first.
compiled = bound("x", "before / after", before=wall("{first}", "{at}"), after=wall("rewrite-compiled", "{at}"))
# How many times as fast the rewrite is when nothing is compiled.
uncompiled = bound("x", "before / after", before=wall("eager", "{at}"), after=wall("rewrite", "{at}"))
# How many times as long the rewritten loop takes when its step is compiled.
loop_compiled = bound("x", "after / before", after=wall("rewrite-compiled", "loop"), before=wall("rewrite", "loop"))

LABELS = {
    "rewrite": {"label": "rewritten, eager", "short": "rewritten", "role": "rewrite"},
    "rewrite-compiled": {"label": "rewritten, compiled", "short": "rewritten, compiled", "role": "ours"},
}


def points(device: torch.device) -> Iterable[Point]:
    """Each pair small, where the host decides, then each large; on a CPU one of them, since compiling takes longest."""
    if device.type == "cpu":
        yield Point({"rows": 8, "width": 16}, "float32", "forward", ("calls",), part="state")
        return
    for rows, width, size in (dict.fromkeys(TEN, 8), 256, "small "), (ROWS, 1024, ""):
        for part in TEN:
            shape, dtype = {"rows": rows[part], "width": width}, "bfloat16" if part == "experts" else "float32"
            yield Point(shape, dtype, "forward", ("calls",), part=part, name=size + part)


def prepare(point: Point, device: torch.device) -> Workload:
    """A pass is all calls of one side, from the beginning. The dtype is the pair's own, whatever the point says."""
    rows, width = point.shape.values()
    pair = rewrite(point.part, rows, width, device.type)
    if point.part == "experts":
        decide(pair)
    if point.part == "select":
        untie(pair)

    def started(side: Side, compile: Callable, common: Callable[[Any], Tensor]) -> Call:
        function, inputs = side(compile)
        call = partial(one_pass, function, inputs, pair.forget, common)
        for _ in range(2):  # all that is compiled is compiled, and what is given up is given up
            call()
        return call

    def variant(side: Side, compile: Callable, common: Callable[[Any], Tensor] = lambda output: output) -> Variant:
        return Variant(lambda: started(side, compile, common), results)

    return Workload(
        variants={
            "eager": variant(pair.before, as_it_is),
            "compile": variant(pair.before, torch.compile),
            "rewrite": variant(pair.after, as_it_is, pair.common),
            "rewrite-compiled": variant(pair.after, torch.compile, pair.common),
        },
        baseline="eager",
        reference=lambda: in_float64(pair),
        bytes_read=0,  # no bound is drawn: it is the calls that are compared
        bytes_written=0,
        flops=0,
        wrong={
            "5% too large": lambda baseline: each(baseline, lambda t: 1.05 * t),
            "the last call left out": lambda baseline: {**baseline, last(baseline): 0 * baseline[last(baseline)]},
            "the last quarter of the columns not written": lambda baseline: each(baseline, without_a_quarter),
            "the second call twice": lambda baseline: {**baseline, "call 3": again(baseline)},
        },
    )


@torch.no_grad()
def one_pass(
    function: Callable, inputs: Sequence[tuple], forget: Call, common: Callable[[Any], Tensor]
) -> list[Tensor]:
    """All calls in turn."""
    forget()
    return [common(function(*arguments)) for arguments in inputs]


def as_it_is(function: Callable) -> Callable:
    return function


def results(returned: Any) -> Results:
    return {f"call {number}": output for number, output in enumerate(returned, 1)}


def in_float64(pair: Rewrite) -> Results:
    """The first side of a pair, with copies of its module and inputs."""
    function, inputs = pair.before(as_it_is)
    pair.forget()
    if isinstance(function, nn.Module):
        function = copy.deepcopy(function).double()
    wide = [tuple(map(doubled, arguments)) for arguments in inputs]
    return results(one_pass(function, wide, as_nothing, lambda output: output))


def as_nothing() -> None:
    """The copy was made from the beginning."""


def doubled(argument: Any) -> Any:
    if isinstance(argument, dict):
        return {name: doubled(value) for name, value in argument.items()}
    return argument.double() if isinstance(argument, Tensor) and argument.is_floating_point() else argument


@torch.no_grad()
def decide(pair: Rewrite) -> None:
    """Each token is for one expert by far: where two are as likely, rounding would decide."""
    for side in (pair.before, pair.after):
        module, inputs = any_side(side)
        module.router.weight.copy_(torch.eye(*module.router.weight.shape))
        module.router.bias.zero_()
    for (x,) in inputs:
        chosen = torch.arange(len(x), device=x.device).square() % 7 % 4
        x[:, :4] = x[:, :4].clamp(-2, 2)
        x[torch.arange(len(x), device=x.device), chosen] += 6


def any_side(side: Side) -> tuple[Any, Sequence[tuple]]:
    return side(as_it_is)


def untie(pair: Rewrite) -> None:
    """No two scores are equal: their order would be anybody's. How many are above a half differs from call to call."""
    _, inputs = pair.before(as_it_is)
    for call, (_, scores) in enumerate(inputs):
        places = torch.randperm(len(scores), device=scores.device) + 0.5
        scores.copy_((0.8 + 0.02 * call) * places / len(scores))


def each(baseline: Results, change: Callable[[Tensor], Tensor]) -> Results:
    return {name: change(output) for name, output in baseline.items()}


def last(baseline: Results) -> str:
    return f"call {len(baseline)}"


def again(baseline: Results) -> Tensor:
    """What the second call returned, in the form of the third: the part that both have, and zeros."""
    second, third = baseline["call 2"], torch.zeros_like(baseline["call 3"])
    common = tuple(slice(min(a, b)) for a, b in zip(second.shape, third.shape, strict=True))
    third[common] = second[common]
    return third


def without_a_quarter(output: Tensor) -> Tensor:
    kept = output.shape[-1] * 3 // 4
    return torch.cat((output[..., :kept], torch.zeros_like(output[..., kept:])), -1)


CASE = Case(
    question="What does each of ten rewrites for the compiler gain over twelve calls, compiled and eager?",
    check_at={"forward": [{"part": part, "rows": 8, "width": 16} for part in TEN]},
)

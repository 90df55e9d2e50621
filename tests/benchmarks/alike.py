"""Variants that are functions of the same inputs, forward only: all are built, compared and spoilt in the same way."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from snippets.compiler.what_compile_does_traffic import nbytes
from tests.benchmarks.case import Call, Results, Variant, Workload
from tests.benchmarks.sides import tupled

Function = Callable[..., Any]
Spoil = Callable[[Results], Results]
SEARCHED = ("compile-max", "inside")  # variants whose building times alternatives


def named(returned: Any) -> Results:
    return {f"output {n}" if n else "output": t for n, t in enumerate(tupled(returned))}


def workload(
    functions: Mapping[str, Function],
    inputs: Sequence[Tensor],
    written: int,
    flops: int,
    mix: str = "copy",
    wrong: Mapping[str, Function] | None = None,
    spoilt: Mapping[str, Spoil] | None = None,
    reference: Function | None = None,
    results: Callable[[Any], Results] = named,
    seen: Mapping[str, Function] | None = None,
) -> Workload:
    """The first function is the baseline, and on inputs in float64 the reference if no other is given.

    Args:
        inputs: of every function; their bytes are what is read.
        written: bytes.
        wrong: functions whose results the check must refuse.
        spoilt: what to make of right results, so that the check must refuse them.
        seen: by variant, how to look at a result that lies otherwise than the others.
    """
    baseline, first = next(iter(functions.items()))

    def build(name: str) -> Call:
        call = partial(functions[name], *inputs)
        call()  # compiles
        return call

    def look(name: str, returned: Any) -> Results:
        return results(seen[name](returned) if seen and name in seen else returned)

    def of(function: Function, right: Results) -> Results:
        return results(function(*inputs))

    return Workload(
        variants={
            name: Variant(partial(build, name), partial(look, name), chooses_by_timing=name in SEARCHED)
            for name in functions
        },
        baseline=baseline,
        reference=lambda: results((reference or first)(*(t.double() if t.is_floating_point() else t for t in inputs))),
        bytes_read=nbytes(list(inputs)),
        bytes_written=written,
        flops=flops,
        mix=mix,
        wrong={what: partial(of, function) for what, function in (wrong or {}).items()} | dict(spoilt or {}),
    )


def each(change: Callable[[Tensor], Tensor]) -> Spoil:
    """Each result is changed."""
    return lambda right: {name: change(t) for name, t in right.items()}


def cut(t: Tensor) -> Tensor:
    """The last rows were never written."""
    size = max(1, len(t) // 8)
    return torch.cat((t[:-size], torch.zeros_like(t[-size:])))


SPOILT = {"5% too large": each(lambda t: 1.05 * t), "the last eighth is not written": each(cut)}

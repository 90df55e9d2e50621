"""The sides that kernel cases lay side by side: the grid of a row kernel, and its workload at one point.

A case names its inputs and the functions; forward, backward and both, the compiled sides and the names of the results
are made here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType

import torch
import torch._functorch.config
import torch._inductor
import triton
from torch import Tensor

from snippets.validation.timing import Call
from tests.benchmarks.case import Point, Results, Variant, Workload

Function = Callable[..., Tensor | tuple[Tensor, ...]]
Find = Callable[[], Function]  # imports or compiles; raises ImportError where a peer is not installed
SMALL = ("eager", "compile", "compile-max", "ours", "liger", "quack")


class LeftOut(Exception):
    """A side that could be built at a point, and is not: the record says why, and nothing is claimed of it there."""


@dataclass(frozen=True)
class Side:
    """A function, and how it wants what it is given: what is timed is its own call and nothing of ours.

    Attributes:
        find: imports or compiles it; raises ImportError where the library is not installed.
        overwrites: the directions in which it writes over its inputs or over the incoming gradients. There it works on
            copies of its own, and a refresh puts back what it wrote over.
        layout: makes a tensor as it wants them of one as the case has them, and the other way round. Inputs, incoming
            gradients and results go through it, untimed.
        rest: makes the arguments without a gradient as it wants them of the case's; once, untimed.
        incoming: the dtype of the incoming gradients, where its results have another than its inputs.
    """

    find: Find
    overwrites: tuple[str, ...] = ()
    layout: Callable[[Tensor], Tensor] = lambda t: t
    rest: Callable[..., tuple[Tensor, ...]] = lambda *rest: rest
    incoming: torch.dtype | None = None


def grid(
    device: torch.device,
    large: Iterable[Mapping[str, int]],
    small: Iterable[Mapping[str, int]],
    on_a_cpu: Mapping[str, int],
) -> Iterator[Point]:
    """The published grid in bf16: forward and backward at shapes that fill a GPU, calls at those that do not.

    Args:
        device: where it is measured; a CPU gets one shape, fp32, and no kernels of ours.
        large: shapes at which GPU time is taken, of every variant.
        small: shapes that launches rule: back-to-back calls and a graph's replay, of the forward; at the first of them
            of a whole step, too.
        on_a_cpu: the shape for a CPU.
    """
    if device.type == "cpu":
        for direction in ("forward", "backward"):
            yield Point(on_a_cpu, "float32", direction, modes=("calls",), variants=("eager", "compile"))
        return
    for shape in large:
        for direction in ("forward", "backward"):
            yield Point(shape, "bfloat16", direction)
    for index, shape in enumerate(small):
        for direction in ("forward",) if index else ("forward", "both"):
            yield Point(shape, "bfloat16", direction, modes=("calls", "graph"), variants=SMALL)


def of_part(part: str, large: Iterable[Mapping[str, int]], small: Iterable[Mapping[str, int]] = ()) -> Iterator[Point]:
    """What else a case measures, on a GPU: forward and backward at large shapes, the forward at small ones."""
    for shape in large:
        for direction in ("forward", "backward"):
            yield Point(shape, "bfloat16", direction, part=part)
    for shape in small:
        yield Point(shape, "bfloat16", "forward", ("calls", "graph"), SMALL, part)


def shapes(*sizes: tuple[int, int]) -> list[dict[str, int]]:
    """Rows and columns by name."""
    return [{"rows": rows, "columns": columns} for rows, columns in sizes]


def workload(
    point: Point,
    kernel: ModuleType,
    inputs: Mapping[str, Tensor],
    functions: Mapping[str, Find | Side],
    *,
    bytes_read: int,
    bytes_written: int,
    flops: int,
    mix: str,
    rest: tuple[Tensor, ...] = (),
    outputs: tuple[str, ...] = ("output",),
    grads: tuple[Tensor, ...] | None = None,
    largest_summands: Mapping[str, float] | None = None,
    wrong: Mapping[str, Function] | None = None,
) -> Workload:
    """All sides at one point, on the same inputs, which none of them may touch.

    Args:
        kernel: the module of ours, for the record of its binaries.
        inputs: the arguments that get a gradient, by name, in order; `rest` are those that follow.
        functions: by variant. "eager" is the plain op: it is the baseline, the reference in float64, and what
            "compile" and "compile-max" compile.
        bytes_read, bytes_written, flops, mix: of the point's direction.
        outputs: names of what the functions return.
        grads: incoming gradients; random ones if not given.
        largest_summands: of results whose terms cancel.
        wrong: functions whose results the check must refuse, by what is wrong with them.
    """
    training = point.direction != "forward"
    sides = {name: side if isinstance(side, Side) else Side(side) for name, side in functions.items()}
    eager = sides["eager"].find()
    sides["compile"] = Side(lambda: compiled(eager))
    sides["compile-max"] = Side(lambda: every_knob_at(point, eager))
    if grads is None and training:
        with torch.no_grad():
            grads = tuple(torch.randn_like(y) for y in tupled(eager(*inputs.values(), *rest)))
    step = {"forward": forward, "backward": backward, "both": both}[point.direction]
    of_inputs = tuple(f"{name}.grad" for name in inputs)
    names = {"forward": outputs, "backward": of_inputs, "both": (*outputs, *of_inputs)}[point.direction]
    dtype = next(iter(inputs.values())).dtype

    def named(returned: object) -> Results:
        return dict(zip(names, tupled(returned), strict=True))  # type: ignore[arg-type]

    def variant(name: str, side: Side) -> Variant:
        in_place = point.direction in side.overwrites
        taken: list[tuple[Tensor, Tensor]] = []  # what the call writes over, and what stood there

        def build() -> Call:
            function = side.find()
            given = tuple(side.layout(t) for t in inputs.values())
            incoming = tuple(side.layout(t).to(side.incoming or t.dtype) for t in grads or ())
            if in_place:
                kept = given + incoming
                given, incoming = tuple(t.clone() for t in given), tuple(t.clone() for t in incoming)
                taken[:] = zip(given + incoming, kept, strict=True)
            leaves = tuple(t.detach().requires_grad_(training) for t in given)
            return step(function, leaves, side.rest(*rest), incoming)

        def refresh() -> None:
            for t, was in taken:
                t.data.copy_(was)  # .data: to autograd, what it saved for the backward was never touched

        def results(returned: object) -> Results:
            return {name: rounded(side.layout(t), dtype) for name, t in named(returned).items()}

        of_ours = (lambda: binaries(kernel, build())) if name == "ours" else None
        every_knob = name == "compile-max"
        return Variant(build, results, of_ours, refresh=refresh if in_place else None, chooses_by_timing=every_knob)

    def reference() -> Results:
        exact = tuple(t.detach().double().requires_grad_(training) for t in inputs.values())
        others = tuple(t.double() if t.is_floating_point() else t for t in rest)
        return named(step(eager, exact, others, tuple(t.double() for t in grads or ()))())

    def wrongly(function: Function) -> Callable[[Results], Results]:
        leaves = tuple(t.detach().requires_grad_(training) for t in inputs.values())
        return lambda baseline: named(step(function, leaves, rest, grads)())

    return Workload(
        variants={name: variant(name, side) for name, side in sides.items()},
        baseline="eager",
        reference=reference,
        bytes_read=bytes_read,
        bytes_written=bytes_written,
        flops=flops,
        mix=mix,
        largest_summands=largest_summands or {},
        wrong={name: wrongly(function) for name, function in (wrong or {}).items()},
    )


def rounded(t: Tensor, dtype: torch.dtype) -> Tensor:
    """A result in the others' dtype. What it is made of is spoilt, so that a replay that computes nothing shows."""
    if t.dtype == dtype:
        return t
    result = t.detach().to(dtype)
    t.detach().fill_(float("nan"))
    return result


# ---- what is timed --------------------------------------------------------------------------------------------------


def forward(function: Function, leaves: tuple, rest: tuple, grads: tuple | None) -> Call:
    return lambda: function(*leaves, *rest)


def backward(function: Function, leaves: tuple, rest: tuple, grads: tuple | None) -> Call:
    """The backward alone, again and again on one graph; compiled code must then keep its saved tensors."""
    with torch._functorch.config.patch(donated_buffer=False):
        outputs = tupled(function(*leaves, *rest))
        call = lambda: torch.autograd.grad(outputs, leaves, grads, retain_graph=True)  # noqa: E731
        call()
    return call


def both(function: Function, leaves: tuple, rest: tuple, grads: tuple | None) -> Call:
    def step() -> tuple[Tensor, ...]:
        outputs = tupled(function(*leaves, *rest))
        return *outputs, *torch.autograd.grad(outputs, leaves, grads)

    return step


def tupled(returned: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (returned,) if isinstance(returned, Tensor) else tuple(returned)


# ---- the compiled sides ---------------------------------------------------------------------------------------------


def compiled(function: Function) -> Function:
    return torch.compile(function, dynamic=False)


def compiled_with_every_knob(function: Function) -> Function:
    knobs = torch._inductor.list_mode_options("max-autotune-no-cudagraphs") | {"coordinate_descent_tuning": True}
    return torch.compile(function, dynamic=False, options=knobs)


def every_knob_at(point: Point, function: Function) -> Function:
    """The compiled side, at large shapes. The reason stands in the record, and below each table that asks for it."""
    if point.variants is not None:
        raise LeftOut("slow to build, so it is built only where GPU time with a cold cache is measured")
    return compiled_with_every_knob(function)


def binaries(kernel: ModuleType, call: Call) -> Mapping[str, object]:
    """The compiled kernels of ours that a call launches, by name."""
    launched = []
    hook = lambda metadata: launched.append(metadata.get()["function"])  # noqa: E731
    triton.knobs.runtime.launch_enter_hook.add(hook)
    try:
        call()
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(hook)
    functions = {name: f for name, f in vars(kernel).items() if isinstance(f, triton.runtime.JITFunction)}
    return {
        name: binary
        for name, function in functions.items()
        for caches in function.device_caches.values()
        for binary in caches[0].values()
        if binary.function in launched
    }

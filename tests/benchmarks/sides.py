"""The sides that kernel cases lay side by side: the grid of a row kernel, and its workload at one point.

A case names its inputs and the functions; forward, backward and both, the compiled sides and the names of the results
are made here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType

import torch
import torch._functorch.config
import torch._inductor
import triton
from torch import Tensor

from snippets.validation.timing import Call
from tests.benchmarks.case import Point, Results, Variant, Workload

SOURCES = ("tests/benchmarks/sides.py",)  # part of what a case measures
Function = Callable[..., Tensor | tuple[Tensor, ...]]
Find = Callable[[], Function]  # imports or compiles; raises ImportError where a peer is not installed
SMALL = ("eager", "compile", "ours", "liger", "quack")  # without those that are slow to build


def grid(
    device: torch.device,
    large: Iterable[Mapping[str, int]],
    small: Iterable[Mapping[str, int]],
    knobs: Iterable[Mapping[str, int]],
    on_a_cpu: Mapping[str, int],
) -> Iterator[Point]:
    """The published grid in bf16: forward and backward at shapes that fill a GPU, calls at those that do not.

    Args:
        device: where it is measured; a CPU gets one shape, fp32, and no kernels of ours.
        large: shapes at which GPU time is taken.
        small: shapes that launches rule: back-to-back calls and a graph's replay, of the forward; at the first of them
            of a whole step, too.
        knobs: those of the large shapes at which the compiler also gets every knob, which is slow to build.
        on_a_cpu: the shape for a CPU.
    """
    if device.type == "cpu":
        for direction in ("forward", "backward"):
            yield Point(on_a_cpu, "float32", direction, modes=("calls",), variants=("eager", "compile"))
        return
    knobs = list(knobs)
    for shape in large:
        for direction in ("forward", "backward"):
            yield Point(shape, "bfloat16", direction, variants=None if shape in knobs else SMALL)
    for index, shape in enumerate(small):
        for direction in ("forward",) if index else ("forward", "both"):
            yield Point(shape, "bfloat16", direction, modes=("calls", "graph"), variants=SMALL)


def shapes(*sizes: tuple[int, int]) -> list[dict[str, int]]:
    """Rows and columns by name."""
    return [{"rows": rows, "columns": columns} for rows, columns in sizes]


def workload(
    point: Point,
    kernel: ModuleType,
    inputs: Mapping[str, Tensor],
    functions: Mapping[str, Find],
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
    leaves = tuple(t.detach().requires_grad_(point.direction != "forward") for t in inputs.values())
    eager = functions["eager"]()
    if grads is None and point.direction != "forward":
        with torch.no_grad():
            grads = tuple(torch.randn_like(y) for y in tupled(eager(*leaves, *rest)))
    step = {"forward": forward, "backward": backward, "both": both}[point.direction]
    names = {
        "forward": outputs,
        "backward": tuple(f"{name}.grad" for name in inputs),
        "both": (*outputs, *(f"{name}.grad" for name in inputs)),
    }[point.direction]

    def results(returned: object) -> Results:
        return dict(zip(names, tupled(returned), strict=True))  # type: ignore[arg-type]

    def variant(name: str, find: Find) -> Variant:
        def build() -> Call:
            return step(find(), leaves, rest, grads)

        return Variant(build, results, (lambda: binaries(kernel, build())) if name == "ours" else None)

    def reference() -> Results:
        exact = tuple(t.detach().double().requires_grad_(t.requires_grad) for t in leaves)
        others = tuple(t.double() if t.is_floating_point() else t for t in rest)
        return results(step(eager, exact, others, tuple(t.double() for t in grads or ()))())

    def wrongly(function: Function) -> Callable[[Results], Results]:
        return lambda baseline: results(step(function, leaves, rest, grads)())

    finders = dict(functions) | {
        "compile": lambda: compiled(eager),
        "compile-max": lambda: compiled_with_every_knob(eager),
    }
    return Workload(
        variants={name: variant(name, find) for name, find in finders.items()},
        baseline="eager",
        reference=reference,
        bytes_read=bytes_read,
        bytes_written=bytes_written,
        flops=flops,
        mix=mix,
        largest_summands=largest_summands or {},
        wrong={name: wrongly(function) for name, function in (wrong or {}).items()},
    )


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

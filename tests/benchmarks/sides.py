"""The sides that kernel cases lay side by side: the grid of a row kernel, and its workload at one point.

A case names its inputs and the functions; forward, backward and both, the compiled sides and the names of the results
are made here.
"""

import importlib
import operator
from collections.abc import Callable, Iterator, Mapping
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
Shapes = Mapping[
    str, Mapping[str, int]
]  # by the names that pages use; one whose name is "odd" is for large sizes alone
SMALL = ("eager", "compile", "compile-max", "ours", "liger", "quack")
FEW = {"rows": 256}  # as in decoding
SUFFIX = {"forward": "", "backward": " backward", "both": " step"}  # of a point's name


class LeftOut(Exception):
    """A side that could be built at a point, and is not: the record says why, and nothing is claimed of it there."""


def library(path: str) -> Find:
    """A function of a library: "quack.softmax:softmax"."""
    module, _, names = path.partition(":")
    return lambda: operator.attrgetter(names)(importlib.import_module(module))


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
    device: torch.device, large: Shapes, on_a_cpu: Mapping[str, int], few: Mapping[str, int] = FEW, small: str = "small"
) -> Iterator[Point]:
    """The published grid in bf16: forward and backward at shapes that fill a GPU, calls at those that do not.

    Args:
        device: where it is measured; a CPU gets one shape, fp32, and no kernels of ours.
        large: shapes at which GPU time is taken, of every variant, by the names that pages use.
        on_a_cpu: the shape for a CPU.
        few: what makes of a large shape one that launches rule: back-to-back calls and a graph's replay, of the
            forward; of the first of them of a whole step, too.
        small: how pages call these; that of the typical shape has no other name.
    """
    if device.type == "cpu":
        for direction in ("forward", "backward"):
            yield Point(on_a_cpu, "float32", direction, modes=("calls",), variants=("eager", "compile"))
        return
    yield from of_part("", large)
    for index, name in enumerate(name for name in large if name != "odd"):
        for direction in ("forward",) if index else ("forward", "both"):
            shape = {**large[name], **few}
            yield Point(shape, "bfloat16", direction, ("calls", "graph"), SMALL, name=called(small, name, direction))


def of_part(part: str, large: Shapes) -> Iterator[Point]:
    """What a case measures on a GPU at large shapes: forward and backward."""
    for name, shape in large.items():
        for direction in ("forward", "backward"):
            yield Point(shape, "bfloat16", direction, part=part, name=called(part, name, direction))


def called(what: str, name: str, direction: str) -> str:
    """A point's name: "typical backward"; of a part, or of small shapes, "geglu 4k columns", "small" where typical."""
    return f"{what} {'' if what and name == 'typical' else name}".strip() + SUFFIX[direction]


def shapes(sizes: Mapping[str, tuple[int, int]]) -> dict[str, Mapping[str, int]]:
    """Rows and columns by their names, of those of some shapes."""
    return {name: {"rows": rows, "columns": columns} for name, (rows, columns) in sizes.items()}


@dataclass(frozen=True)
class Given:
    """What all sides get at one point, and what their results are called.

    Attributes:
        direction: of the point.
        inputs: the arguments that get a gradient, in order; `rest` are those that follow.
        grads: incoming gradients; none forward.
        names: of the results.
    """

    direction: str
    inputs: tuple[Tensor, ...]
    rest: tuple[Tensor, ...]
    grads: tuple[Tensor, ...]
    names: tuple[str, ...]

    def call(self, function: Function, inputs: tuple, rest: tuple, grads: tuple) -> Call:
        """What is timed of a function, on these tensors in place of those that are given."""
        training = self.direction != "forward"
        leaves = tuple(t.detach().requires_grad_(training) for t in inputs)
        return {"forward": forward, "backward": backward, "both": both}[self.direction](function, leaves, rest, grads)

    def named(self, returned: object) -> Results:
        return dict(zip(self.names, tupled(returned), strict=True))  # type: ignore[arg-type]

    def wrongly(self, function: Function) -> Callable[[Results], Results]:
        """What the check must refuse, whatever the baseline gives."""
        return lambda baseline: self.named(self.call(function, self.inputs, self.rest, self.grads)())

    def exact_results(self, function: Function) -> Results:
        """In float64."""
        rest = tuple(t.double() if t.is_floating_point() else t for t in self.rest)
        inputs, grads = (tuple(t.detach().double() for t in of) for of in (self.inputs, self.grads))
        return self.named(self.call(function, inputs, rest, grads)())


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
    sides = {name: side if isinstance(side, Side) else Side(side) for name, side in functions.items()}
    eager = sides["eager"].find()
    sides["compile"] = Side(lambda: compiled(eager))
    sides["compile-max"] = Side(lambda: every_knob_at(point, eager))
    if grads is None and point.direction != "forward":
        with torch.no_grad():
            grads = tuple(torch.randn_like(y) for y in tupled(eager(*inputs.values(), *rest)))
    of_inputs = tuple(f"{name}.grad" for name in inputs)
    names = {"forward": outputs, "backward": of_inputs, "both": (*outputs, *of_inputs)}[point.direction]
    given = Given(point.direction, tuple(inputs.values()), rest, grads or (), names)
    return Workload(
        variants={name: variant(side, given, name, kernel) for name, side in sides.items()},
        baseline="eager",
        reference=lambda: given.exact_results(eager),
        bytes_read=bytes_read,
        bytes_written=bytes_written,
        flops=flops,
        mix=mix,
        largest_summands=largest_summands or {},
        wrong={name: given.wrongly(function) for name, function in (wrong or {}).items()},
    )


def variant(side: Side, given: Given, name: str, kernel: ModuleType) -> Variant:
    """A side as the runner times it; of "ours" the binaries are recorded, too."""
    in_place = given.direction in side.overwrites
    taken: list[tuple[Tensor, Tensor]] = []  # what the call writes over, and what stood there

    def build() -> Call:
        function = side.find()
        inputs = tuple(side.layout(t) for t in given.inputs)
        incoming = tuple(side.layout(t).to(side.incoming or t.dtype) for t in given.grads)
        if in_place:
            kept = inputs + incoming
            inputs, incoming = tuple(t.clone() for t in inputs), tuple(t.clone() for t in incoming)
            taken[:] = zip(inputs + incoming, kept, strict=True)
        return given.call(function, inputs, side.rest(*given.rest), incoming)

    def refresh() -> None:
        for t, was in taken:
            t.data.copy_(was)  # .data: to autograd, what it saved for the backward was never touched

    def results(returned: object) -> Results:
        dtype = given.inputs[0].dtype
        return {name: rounded(side.layout(t), dtype) for name, t in given.named(returned).items()}

    of_ours = (lambda: binaries(kernel, build())) if name == "ours" else None
    every_knob = name == "compile-max"
    return Variant(build, results, of_ours, refresh=refresh if in_place else None, chooses_by_timing=every_knob)


def rounded(t: Tensor, dtype: torch.dtype) -> Tensor:
    """A result in the others' dtype. What it is made of is spoilt, so that a replay that computes nothing shows."""
    if t.dtype == dtype:
        return t
    result = t.detach().to(dtype)
    t.detach().fill_(float("nan"))
    return result


def column_sum(terms: Tensor) -> float:
    """The largest summand of sums over rows; a partial sum is one, too, and the last of these is the result."""
    return max(terms.abs().max().item(), terms.sum(0).abs().max().item())


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

"""What fusion is worth at each step of a growing function, what an opaque operator in it costs, and what fusing too
much does: repeated work, and too many values at once."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from snippets.compiler import fusion as page
from snippets.compiler.fusion import scale_of, times
from snippets.compiler.what_compile_does_traffic import nbytes
from tests.benchmarks import alike, wrong
from tests.benchmarks.bounds import bound, ceiling, gpu
from tests.benchmarks.case import Case, Point, Results, Workload
from tests.benchmarks.own import own
from tests.benchmarks.sides import compiled_with_every_knob

Function = Callable[..., Tensor | tuple[Tensor, ...]]


def points(device: torch.device) -> Iterable[Point]:
    """The steps, sums over a window, and tensors that need each other."""
    if device.type == "cpu":
        small = {
            "scaled": {"rows": 1024},
            "window": {"window": 8, "rows": 512},
            "together": {"tensors": 4, "rows": 256},
        }
        for part, shape in small.items():
            yield Point(shape | {"columns": 1024}, "float32", "forward", ("calls",), part=part)
        return
    for step in page.STEPS:
        variants = (
            None if step in (page.scaled, page.activated) else ("eager", "compile")
        )  # max-autotune is slow to build
        shape, part = {"rows": 16384, "columns": 4096}, step.__name__
        yield Point(shape, "bfloat16", "forward", variants=variants, part=part, name=part.replace("_", " "))
    for width in (2, 4, 8, 16):
        shape, name = {"window": width, "rows": 8192, "columns": 8192}, f"window of {width}"
        yield Point(shape, "float32", "forward", part="window", name=name)
    for several in (2, 4, 8, 16):
        shape = {"tensors": several, "rows": 65536, "columns": 1024}
        yield Point(shape, "bfloat16", "forward", part="together", name=f"{several} tensors")


def prepare(point: Point, device: torch.device) -> Workload:
    """A step of the growing function, or one of the other two."""
    dtype = getattr(torch, point.dtype)
    of = {"window": of_window, "together": of_together}.get(point.part) or partial(of_step, point.part)
    return of(*point.shape.values(), device, dtype)  # type: ignore[call-arg]


def of_step(name: str, rows: int, columns: int, device: torch.device, dtype: torch.dtype) -> Workload:
    """The growing function, up to one of its steps."""
    number, step = next((n, each) for n, each in enumerate(page.STEPS, 1) if each.__name__ == name)
    inputs = page.inputs_of(step, rows, columns, str(device), dtype)
    variants: dict[str, Function] = {"eager": step, "compile": compiled(step)}
    if step is page.scaled:
        variants["opaque"] = compiled(page.scaled_opaque)
        if device.type == "cuda":
            variants["ours"] = compiled(scaled_by_ours)
    variants["compile-max"] = compiled_with_every_knob(own(step))
    table = page.HEADS * page.GROUPS * (columns // page.HEADS) * 4 if step is page.pooled else 0
    products = 2 * rows * columns * columns if number > page.STEPS.index(page.projected) else 0
    return alike.workload(
        variants,
        inputs,
        written=rows * columns * dtype.itemsize + table,
        flops=products + 20 * rows * columns,
        mix="triad",
        results=results,
        wrong=wrong.usual(step) | {"bias left out": lambda x, y, bias, *others: step(x, y, 0 * bias, *others)},
    )


def of_window(width: int, rows: int, columns: int, device: torch.device, dtype: torch.dtype) -> Workload:
    """An expensive function: computed anew for each sum, or once and kept."""
    function = partial(page.window, width=width)
    x = torch.randn(rows, columns, device=device).to(dtype)
    size = columns - width + 1
    return alike.workload(
        {
            "eager": function,
            "compile": partial(compiled(page.window), width=width),
            "kept": partial(compiled(page.window, options=page.KEEP), width=width),
        },
        [x],
        written=rows * size * dtype.itemsize,
        flops=rows * size * width,
        results=results,
        wrong=wrong.usual(function) | {"last of the window left out": lambda x: page.window(x, width - 1)[:, :size]},
    )


def of_together(several: int, rows: int, columns: int, device: torch.device, dtype: torch.dtype) -> Workload:
    """Several tensors that need each other's sums: all in one kernel, or each read twice."""
    tensors = [torch.randn(rows, columns, device=device).to(dtype) for _ in range(several)]
    return alike.workload(
        {
            "eager": page.together,
            "compile": compiled(page.together),
            "apart": apart(compiled(scale_of), compiled(times)),
        },
        tensors,
        written=nbytes(tensors),
        flops=3 * several * rows * columns,
        results=results,
        wrong=wrong.usual(page.together)
        | {"each over its own length": lambda *tensors: tuple(page.together(tensor)[0] for tensor in tensors)},
    )


def compiled(function: Function, **how: Any) -> Function:
    """For the shapes at hand, and apart from what else compiles the function."""
    return torch.compile(own(function), dynamic=False, **how)


def scaled_by_ours(x: Tensor, y: Tensor, bias: Tensor, weight: Tensor) -> Tensor:
    """`scaled` with the kernel of the page on RMSNorm, which is faster by itself."""
    from kernels.rms_norm import rms_norm

    hidden = rms_norm(page.gated(x, y, bias), weight, 1e-6)
    return hidden / hidden.abs().amax(dim=-1, keepdim=True)


def apart(scale_of: Function, times: Function) -> Function:
    """One kernel for the sums and one for each tensor."""

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        scale = scale_of(*tensors)
        return tuple(times(tensor, scale) for tensor in tensors)

    return function


def results(returned: object) -> Results:
    """All in the dtype of the first: a sum in fp32 of bf16 values is as far off as those."""
    tensors = returned if isinstance(returned, tuple) else (returned,)
    return {f"output {n}" if n else "output": tensor.to(tensors[0].dtype) for n, tensor in enumerate(tensors)}


TRIAD = ceiling("triad", case="compiler/fusion")
TENSOR = {"rows": 16384, "columns": 4096, "width": 2}
# How many times the bytes that are needed are moved, where the norm is a kernel of its own.
moved_over_needed = bound("x", "moved / needed", moved=7, needed=3)
# The time with the norm as an opaque kernel, over the time of the fused one.
longer_by_the_norm = bound("x", "ours / compiled", ours=gpu("ours", "scaled"), compiled=gpu("compile", "scaled"))
# How near three tensors, in the time of this step, come to the bandwidth of two reads per write.
reached = bound("%", "3 * rows * columns * width / time / triad", TENSOR, time=gpu("compile", "{at}"), triad=TRIAD)
# How near the six tensors that step 4 moves come to the bandwidth of two reads per write.
reached_with_six = bound(
    "%", "6 * rows * columns * width / time / triad", TENSOR, time=gpu("compile", "balanced"), triad=TRIAD
)
# How near the seven tensors that three kernels move come to the bandwidth of two reads per write.
reached_with_seven = bound(
    "%", "7 * rows * columns * width / time / triad", TENSOR, time=gpu("ours", "scaled"), triad=TRIAD
)
# The share of the peak bandwidth that remains where each tensor is read twice, but counted once.
most_one_by_one = bound("%", "needed / moved", needed=2, moved=3)
# The time of 16 tensors in one kernel, over their time one by one.
lost_together = bound("x", "together / apart", together=gpu("compile", "16 tensors"), apart=gpu("apart", "16 tensors"))
# What gate and scaling take at least, where the norm between them is opaque: five tensors are moved.
least_unfused = bound("us", "5 * rows * columns * width / triad", TENSOR, triad=TRIAD)
# What the fused kernel takes at least: three tensors are moved.
least_fused = bound("us", "3 * rows * columns * width / triad", TENSOR, triad=TRIAD)

LABELS = {
    "opaque": {"label": "compile, norm opaque", "short": "norm opaque", "role": "rewrite"},
    "kept": {"label": "compile, kept in memory", "short": "kept", "role": "rewrite"},
    "apart": {"label": "compile, one by one", "short": "one by one", "role": "rewrite"},
}
CASE = Case(
    question="What does each fusion save as a function grows, and when has the compiler fused too much?",
    check_at={
        "forward": [
            *({"part": step.__name__, "rows": 64, "columns": 1024} for step in page.STEPS),
            {"part": "window", "window": 4, "rows": 64, "columns": 1024},
            {"part": "together", "tensors": 4, "rows": 64, "columns": 1024},
        ]
    },
)

"""What torch.compile is worth for a chain of elementwise operations and a reduction, and from which size on."""

import warnings
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor

from snippets.compiler.what_compile_does import unit_rows
from tests.benchmarks.case import Call, Case, Point, Results, Variant, Workload


def points(device: torch.device) -> Iterable[Point]:
    """From sizes that launching rules to sizes that memory rules; 16384 columns no longer fit in one tile."""
    if device.type == "cpu":
        for rows in (16, 4096):
            yield Point({"rows": rows, "columns": 1024}, "float32", "forward", ("calls",))
        return
    for direction in ("forward", "both"):
        for rows, columns in ((64, 1024), (1024, 1024), (8192, 1024), (65536, 1024), (4096, 16384)):
            yield Point({"rows": rows, "columns": columns}, "bfloat16", direction, ("device", "calls"))


def prepare(point: Point, device: torch.device) -> Workload:
    """Inputs x, y (rows, columns) and bias (columns,), and for a training step the output's gradient."""
    rows, columns = point.shape.values()
    dtype = getattr(torch, point.dtype)
    x, y, upstream = (torch.randn(rows, columns, device=device).to(dtype) for _ in range(3))
    bias = torch.randn(columns, device=device).to(dtype)
    step = point.direction == "both"
    inputs = [tensor.requires_grad_(step) for tensor in (x, y, bias)]
    forward_reads, forward_writes = 2 * x.nbytes + bias.nbytes, x.nbytes
    # Backward is called when forward has long finished: it reads x, y and the gradient, and writes those of x and y.
    backward_reads, backward_writes = 3 * x.nbytes + bias.nbytes, 2 * x.nbytes + bias.nbytes
    return Workload(
        variants={
            "eager": Variant(lambda: call(unit_rows, inputs, upstream, step), results),
            "compile": Variant(lambda: compiled(inputs, upstream, step), results),
        },
        baseline="eager",
        reference=lambda: in_float64(inputs, upstream, step),
        bytes_read=forward_reads + step * backward_reads,
        bytes_written=forward_writes + step * backward_writes,
        flops=(7 + 14 * step) * x.numel(),  # add, relu, square, add; the norm's square and add; divide
        mix="triad",
    )


def call(function: Callable[..., object], inputs: list[Tensor], upstream: Tensor, step: bool) -> Call:
    """The forward, or a step: forward and backward."""
    if not step:
        return partial(function, *inputs)

    def forward_and_backward() -> tuple[object, ...]:
        output = function(*inputs)
        return output, *torch.autograd.grad(output, inputs, upstream)

    return forward_and_backward


def compiled(inputs: list[Tensor], upstream: Tensor, step: bool) -> Call:
    """Compiled and called once, without Inductor's caches: as on a machine that has never seen this function."""
    run = call(torch.compile(unit_rows), inputs, upstream, step)
    with torch._inductor.config.patch(force_disable_caches=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*force disabled")
        run()
    return run


def results(returned: object) -> Results:
    tensors = returned if isinstance(returned, tuple) else (returned,)
    return dict(zip(("output", "x.grad", "y.grad", "bias.grad"), tensors, strict=False))


def in_float64(inputs: list[Tensor], upstream: Tensor, step: bool) -> Results:
    exact = [tensor.detach().double().requires_grad_(step) for tensor in inputs]
    return results(call(unit_rows, exact, upstream.double(), step)())


CASE = Case(
    name="compiler/what-compile-does",
    question="What does fusing six operations into one kernel save, and at which size does it start to?",
    sources=("snippets/compiler/what_compile_does.py",),
    points=points,
    prepare=prepare,
)

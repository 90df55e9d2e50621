"""What torch.compile is worth for a chain of elementwise operations and a reduction, and from which size on."""

import warnings
from collections.abc import Callable, Iterable
from functools import partial
from math import ceil

import torch
from torch import Tensor

from snippets.compiler.what_compile_does import unit_rows
from tests.benchmarks import wrong
from tests.benchmarks.bounds import bound, ceiling, gpu
from tests.benchmarks.case import Call, Case, Point, Results, Variant, Workload


def add_bias(x: Tensor, y: Tensor, bias: Tensor) -> Tensor:
    """The first operation alone: with nothing to fuse, compiling can only cost."""
    return y + bias


FUNCTIONS = {6: unit_rows, 1: add_bias}  # by number of operations


def points(device: torch.device) -> Iterable[Point]:
    """From sizes that launching rules to sizes that memory rules; 16384 columns no longer fit in one tile."""
    if device.type == "cpu":
        for operations, rows in ((6, 16), (6, 4096), (1, 16)):
            yield Point({"operations": operations, "rows": rows, "columns": 1024}, "float32", "forward", ("calls",))
        return
    for direction in ("forward", "both"):
        for rows, columns in ((64, 1024), (1024, 1024), (8192, 1024), (65536, 1024), (4096, 16384)):
            shape = {"operations": 6, "rows": rows, "columns": columns}
            shown = direction == "forward" or rows == 65536
            yield Point(shape, "bfloat16", direction, ("device", "calls"), shown=shown)
    yield Point({"operations": 1, "rows": 64, "columns": 1024}, "bfloat16", "forward", ("device", "calls"))


def prepare(point: Point, device: torch.device) -> Workload:
    """Inputs x, y (rows, columns) and bias (columns,), and for a training step the output's gradient."""
    operations, rows, columns = point.shape.values()
    function = FUNCTIONS[operations]
    dtype = getattr(torch, point.dtype)
    x, y, upstream = (torch.randn(rows, columns, device=device).to(dtype) for _ in range(3))
    bias = torch.randn(columns, device=device).to(dtype)
    step = point.direction == "both"
    inputs = [tensor.requires_grad_(step) for tensor in (x, y, bias)]

    def wrongly(function: Callable[..., Tensor]) -> Callable[[Results], Results]:
        return lambda baseline: results(call(function, inputs, upstream, step)())

    read, written, flops = cost(operations, step, x.numel())
    return Workload(
        variants={
            "eager": Variant(lambda: call(function, inputs, upstream, step), results),
            "compile": Variant(lambda: compiled(function, inputs, upstream, step), results),
        },
        baseline="eager",
        reference=lambda: in_float64(function, inputs, upstream, step),
        bytes_read=read * x.nbytes + (1 + step) * bias.nbytes,
        bytes_written=written * x.nbytes + step * bias.nbytes,
        flops=flops,
        mix="triad" if operations == 6 else "copy",
        wrong={
            "5% too large": wrongly(wrong.scaled(function)),
            "last tile not written": wrongly(wrong.cut(function)),
            "bias left out": wrongly(lambda x, y, bias: function(x, y, 0 * bias)),
        },
    )


def cost(operations: int, step: bool, elements: int) -> tuple[int, int, int]:
    """Tensors read, tensors written, FLOPs."""
    if operations == 1:
        return 1, 1, elements
    if not step:  # x and y, the result; add, relu, square, add, the norm's square and add, divide
        return 2, 1, 7 * elements
    # Backward begins when forward is over: it reads x, y and the gradient, and writes those of x and y.
    return 2 + 3, 1 + 2, (7 + 14) * elements


def call(function: Callable[..., object], inputs: list[Tensor], upstream: Tensor, step: bool) -> Call:
    """The forward, or a step: forward and backward."""
    if not step:
        return partial(function, *inputs)

    def forward_and_backward() -> tuple[object, ...]:
        output = function(*inputs)
        return output, *torch.autograd.grad(output, inputs, upstream)

    return forward_and_backward


def compiled(function: Callable[..., object], inputs: list[Tensor], upstream: Tensor, step: bool) -> Call:
    """Compiled and called once, without Inductor's caches: as on a machine that has never seen this function."""
    run = call(torch.compile(function), inputs, upstream, step)
    with torch._inductor.config.patch(force_disable_caches=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*force disabled")
        run()
    return run


def results(returned: object) -> Results:
    tensors = returned if isinstance(returned, tuple) else (returned,)
    return dict(zip(("output", "x.grad", "y.grad", "bias.grad"), tensors, strict=False))


def in_float64(function: Callable[..., object], inputs: list[Tensor], upstream: Tensor, step: bool) -> Results:
    exact = [tensor.detach().double().requires_grad_(step) for tensor in inputs]
    return results(call(function, exact, upstream.double(), step)())


@bound("us", rows=65536, columns=1024, width=2, triad=ceiling("triad", case="compiler/what-compile-does"))
def least(rows: float, columns: float, width: float, triad: float) -> float:
    """What the function takes at least: two tensors read and one written."""
    return 3 * rows * columns * width / triad


@bound("x", moved=12, needed=3)
def moved_over_needed(moved: float, needed: float) -> float:
    """How many times the bytes that are needed eager code moves."""
    return moved / needed


@bound("TB/s", rows=65536, columns=1024, width=2, time=gpu("eager", "large"))
def bandwidth_of_twelve(rows: float, columns: float, width: float, time: float) -> float:
    """The bandwidth at which eager code moves its twelve tensors."""
    return 12 * rows * columns * width / time


@bound(
    "%",
    rows=65536,
    columns=1024,
    width=2,
    time=gpu("eager", "large"),
    copy=ceiling("copy", case="compiler/what-compile-does"),
)
def reached_by_twelve(rows: float, columns: float, width: float, time: float, copy: float) -> float:
    """How near eager code's bandwidth comes to that of a copy."""
    return 12 * rows * columns * width / time / copy


@bound("us", eager=gpu("eager", "large"), compiled=gpu("compile", "large"))
def saved_by_a_call(eager: float, compiled: float) -> float:
    """How much less GPU time a call takes, compiled."""
    return eager - compiled


@bound("", eager=gpu("eager", "large"), compiled=gpu("compile", "large"))
def calls_for_a_second(eager: float, compiled: float) -> float:
    """How many calls earn back one second of compiling."""
    return ceil(1 / (eager - compiled))


@bound("us", rows=65536, columns=1024, width=4, triad=ceiling("triad", case="compiler/what-compile-does"))
def least_in_fp32(rows: float, columns: float, width: float, triad: float) -> float:
    """What two tensors read and one written take at least, in fp32."""
    return 3 * rows * columns * width / triad


CHECK_AT = {
    "forward both": [{"operations": 6, "rows": 64, "columns": 1024}],
    "forward": [{"operations": 1, "rows": 64, "columns": 1024}],
}
POINTS = {  # as pages name them
    "large": "forward 6x65536x1024 bfloat16 device",
    "large step": "both 6x65536x1024 bfloat16 device",
    "wide": "forward 6x4096x16384 bfloat16 device",
    "small": "forward 6x64x1024 bfloat16 calls",
    "1024 rows": "forward 6x1024x1024 bfloat16 calls",
    "8192 rows": "forward 6x8192x1024 bfloat16 calls",
    "one operation": "forward 1x64x1024 bfloat16 calls",
}
CASE = Case(
    name="compiler/what-compile-does",
    question="What does fusing six operations into one kernel save, and at which size does it start to?",
    points=points,
    prepare=prepare,
)

"""What torch.compile is worth for a chain of elementwise operations and a reduction, and from which size on."""

import warnings
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from snippets.compiler.what_compile_does import unit_rows
from tests.benchmarks import sides, wrong
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
    sizes = {"small": (64, 1024), "1024 rows": (1024, 1024), "8192 rows": (8192, 1024), "large": (65536, 1024),
             "wide": (4096, 16384)}  # fmt: skip
    for direction, suffix in (("forward", ""), ("both", " step")):
        for name, (rows, columns) in sizes.items():
            shape = {"operations": 6, "rows": rows, "columns": columns}
            modes = ("device", "calls") if name in ("large", "wide") else ("calls", "device")
            shown = direction == "forward" or name == "large"
            yield Point(shape, "bfloat16", direction, modes, shown=shown, name=name + suffix if shown else "")
    one = {"operations": 1, "rows": 64, "columns": 1024}
    yield Point(one, "bfloat16", "forward", ("calls", "device"), name="one operation")


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
            **{what: wrongly(spoilt) for what, spoilt in wrong.usual(function).items()},
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


def call(function: sides.Function, inputs: Iterable[Tensor], upstream: Tensor, step: bool) -> Call:
    """The forward, or a step: forward and backward."""
    return (sides.both if step else sides.forward)(function, tuple(inputs), (), (upstream,))


def compiled(function: sides.Function, inputs: list[Tensor], upstream: Tensor, step: bool) -> Call:
    """Compiled and called once, without Inductor's caches: as on a machine that has never seen this function."""
    run = call(torch.compile(function), inputs, upstream, step)
    with torch._inductor.config.patch(force_disable_caches=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*force disabled")
        run()
    return run


def results(returned: object) -> Results:
    return dict(zip(("output", "x.grad", "y.grad", "bias.grad"), sides.tupled(returned), strict=False))  # type: ignore


def in_float64(function: sides.Function, inputs: list[Tensor], upstream: Tensor, step: bool) -> Results:
    exact = [tensor.detach().double().requires_grad_(step) for tensor in inputs]
    return results(call(function, exact, upstream.double(), step)())


TRIAD = ceiling("triad", case="compiler/what-compile-does")
COPY = ceiling("copy", case="compiler/what-compile-does")
TENSOR = {"rows": 65536, "columns": 1024, "width": 2}
# What the function takes at least: two tensors read and one written.
least = bound("us", "3 * rows * columns * width / triad", TENSOR, triad=TRIAD)
# How many times the bytes that are needed eager code moves.
moved_over_needed = bound("x", "moved / needed", moved=12, needed=3)
# How near eager code's bandwidth comes to that of a copy.
reached_by_twelve = bound(
    "%", "12 * rows * columns * width / time / copy", TENSOR, time=gpu("eager", "large"), copy=COPY
)
# How much less GPU time a call takes, compiled.
saved_by_a_call = bound("us", "eager - compiled", eager=gpu("eager", "large"), compiled=gpu("compile", "large"))
# How many calls earn back one second of compiling.
calls_for_a_second = bound(
    "", "ceil(1 / (eager - compiled))", eager=gpu("eager", "large"), compiled=gpu("compile", "large")
)
# What two tensors read and one written take at least, in fp32.
least_in_fp32 = bound("us", "3 * rows * columns * width / triad", rows=65536, columns=1024, width=4, triad=TRIAD)

CASE = Case(
    question="What does fusing six operations into one kernel save, and at which size does it start to?",
    check_at={
        "forward both": [{"operations": 6, "rows": 64, "columns": 1024}],
        "forward": [{"operations": 1, "rows": 64, "columns": 1024}],
    },
)

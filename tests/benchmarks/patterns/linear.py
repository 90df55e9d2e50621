"""Linear layers at every level; operands stored in other ways; sizes that the tensor cores do not like."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from snippets.patterns import linear as page
from snippets.patterns import linear_batched, linear_epilogue, linear_experts, linear_operands
from snippets.patterns.levels import Function, compiled, largest_summands, step
from tests.benchmarks import levels, sides, wrong
from tests.benchmarks.bounds import bound, gpu
from tests.benchmarks.case import Call, Case, Point, Results, Variant, Workload

SIZES = {  # inner and columns; no multiples of 64
    "width 4095": (4095, 4096), "width 4100": (4100, 4096), "width 4104": (4104, 4096),
    "vocabulary 50257": (1024, 50257),
}  # fmt: skip
NAMES = {"gate_up": "gate and up", "linear_gelu": "linear gelu", "experts": "64 experts", "large experts": "8 experts"}


def points(device: torch.device) -> Iterator[Point]:
    """Each component; layouts of many rows and of few; sizes that are no multiples of 64."""
    if device.type == "cpu":
        for component in page.COMPONENTS:
            shape = dict(zip(component.sizes, component.shapes["tiny"], strict=True))
            dtype = "bfloat16" if component.name == "experts" else "float32"  # the compiler takes these in no other
            yield Point(shape, dtype, "forward", ("calls",), ("level-0", "level-1", "level-3"), component.name)
        yield Point(product_of(64, 128, 128), "float32", "forward", ("calls",), part="layout")
        yield Point(product_of(64, 95, 128), "float32", "both", ("calls",), part="odd")
        return
    for point in levels.points(device, page.COMPONENTS, NAMES):
        typical = tuple(point.shape.values()) == levels.named_part(page.COMPONENTS, point).shapes["typical"]
        known = BESIDE.get(point.part, {}) if typical else {}
        beside = tuple(f"level-{name}" for name, (_, directions) in known.items() if point.direction in directions)
        unrolled = ("level-0-compiled",) if point.part in ("batched", "experts") else ()  # a loop
        own = [name for name in point.variants or () if name not in unrolled]
        yield replace(point, variants=(*own, *beside))
    for rows in (8192, 16):
        yield Point(product_of(rows, 4096, 4096), "bfloat16", part="layout", name=f"layout {rows} rows")
    for name, (inner, columns) in SIZES.items():
        yield Point(product_of(8192, inner, columns), "bfloat16", "both", part="odd", name=name)


def product_of(rows: int, inner: int, columns: int) -> dict[str, int]:
    return {"rows": rows, "inner": inner, "columns": columns}


def prepare(point: Point, device: torch.device) -> Workload:
    if point.part == "layout":
        return of_layouts(point, device)
    if point.part == "odd":
        return of_sizes(point, device)
    of = levels.named_part(page.COMPONENTS, point)
    makers: dict[Any, Callable[[], Function]] = {name: make for name, (make, _) in BESIDE.get(of.name, {}).items()}
    workload = levels.prepare(point, device, [replace(of, levels={**of.levels, **makers})], WRONG)
    variants = dict(workload.variants)
    if "level-3-max" in variants:
        variants["level-3-max"] = replace(variants["level-3-max"], chooses_by_timing=True)
    calls = 3 if point.direction == "both" else 1  # the backward has two products for each of the forward
    return replace(workload, variants=variants, flops=calls * MULTIPLIED[of.name](*point.shape.values()))


MULTIPLIED: dict[str, Callable[..., int]] = {  # operations in the products of a forward, by component
    "qkv": lambda tokens, width: 2 * tokens * width * (width + 2 * (width // 4)),
    "gate_up": lambda tokens, width, hidden: 4 * tokens * width * hidden,
    "linear_gelu": lambda tokens, width: 8 * tokens * width * width,
    "batched": lambda batch, rows, width: 2 * batch * rows * width * width,
    "experts": lambda experts, tokens, width, hidden: 2 * tokens * width * hidden,
}


# ---- operands stored in other ways ----------------------------------------------------------------------------------


def of_layouts(point: Point, device: torch.device) -> Workload:
    """One product. A copy of the weight that is made in the call is a side of its own."""
    rows, inner, columns = point.shape.values()
    dtype = getattr(torch, point.dtype)
    x, weight = linear_operands.made(dtype, device, x=(rows, inner), weight=(columns, inner)).values()
    stored = linear_operands.layouts(x, weight)

    def copied(x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight.contiguous())

    def side(function: Function, name: str) -> Variant:
        return Variant(lambda: partial(function, *stored[name]))

    return Workload(
        variants={name: side(F.linear, name) for name in stored} | {"weight-copied": side(copied, "rows-columns")},
        baseline="rows-rows",
        reference=lambda: {"output": F.linear(x.double(), weight.double())},
        bytes_read=x.nbytes + weight.nbytes,
        bytes_written=rows * columns * dtype.itemsize,
        flops=2 * rows * inner * columns,
        mix="triad",
        wrong={
            "5% too large": lambda baseline: {"output": 1.05 * baseline["output"]},
            "the last tile is not written": lambda baseline: {"output": wrong.cut(F.linear)(x, weight)},
            "the columns next to it": lambda baseline: {"output": F.linear(x.roll(1, -1), weight)},
        },
    )


# ---- sizes that are no multiples of 64 ------------------------------------------------------------------------------


def of_sizes(point: Point, device: torch.device) -> Workload:
    """A step with the sizes as they are, and with both made larger: the inputs of that have zeros at their ends."""
    rows, inner, columns = point.shape.values()
    dtype = getattr(torch, point.dtype)
    x, weight = linear_operands.made(dtype, device, x=(rows, inner), weight=(columns, inner)).values()
    incoming = torch.randn(rows, columns, device=device).to(dtype)

    def call(function: Function, *given: Tensor) -> Call:
        x, weight, incoming = given
        leaves = {"x": x.detach().requires_grad_(), "weight": weight.detach().requires_grad_()}
        return partial(step, function, leaves, ("x", "weight"), (incoming,))

    def results(returned: Any) -> Results:
        """Without what was added to the sizes."""
        output, x_grad, weight_grad = returned
        inside = {"output": output[:, :columns], "x.grad": x_grad[:, :inner]}
        return {**inside, "weight.grad": weight_grad[:columns, :inner]}

    @cache
    def reference() -> Results:
        return results(call(F.linear, x.double(), weight.double(), incoming.double())())

    def spoilt(function: Function) -> Callable[[Results], Results]:
        return lambda baseline: results(call(function, x, weight, incoming)())

    padded = linear_operands.larger(weight)
    wide_x = F.pad(x, (0, padded.shape[1] - inner))
    wide_incoming = F.pad(incoming, (0, padded.shape[0] - columns))
    itemsize = dtype.itemsize
    return Workload(
        variants={
            "eager": Variant(lambda: call(F.linear, x, weight, incoming), results),
            "larger": Variant(lambda: call(F.linear, wide_x, padded, wide_incoming), results),
            "compile": Variant(lambda: call(compiled(F.linear), x, weight, incoming), results),
        },
        baseline="eager",
        reference=reference,
        bytes_read=2 * (x.nbytes + weight.nbytes) + incoming.nbytes,
        bytes_written=itemsize * (rows * columns + rows * inner + columns * inner),
        flops=6 * rows * inner * columns,
        mix="triad",
        largest_summands=largest_summands(reference(), {"x": x, "weight": weight}),
        wrong={
            "5% too large": spoilt(wrong.scaled(F.linear)),
            "the last tile is not written": spoilt(wrong.cut(F.linear)),
            "the last columns of both are left out": spoilt(lambda x, w: F.linear(x[:, :-8], w[:, :-8])),
        },
    )


# ---- what is wrong, and what is timed beside the levels -------------------------------------------------------------


def without_the_last(x: Tensor, weight: Tensor, ends: Tensor, sizes: list[int]) -> Tensor:
    y = linear_experts.experts_written(x, weight, ends, sizes)
    return torch.cat((y[: -sizes[-1]], 0 * y[-sizes[-1] :]))


WRONG: levels.Wrong = {
    "qkv": {
        "last tile not written": wrong.changed(page.qkv_native, lambda y: F.pad(y[..., :-32], (0, 32))),
        "keys for values": lambda x, weight: (*page.qkv_native(x, weight)[:2], page.qkv_native(x, weight)[1]),
        "an eighth of the terms left out": lambda x, weight: page.qkv_native(
            torch.cat((0 * x[:, : x.shape[1] // 8], x[:, x.shape[1] // 8 :]), -1), weight
        ),
    },
    "gate_up": {
        "last tile not written": wrong.changed(page.gate_up_native, lambda y: F.pad(y[..., :-32], (0, 32))),
        "gate and up exchanged": lambda x, weight: page.gate_up_native(x, torch.cat(weight.chunk(2)[::-1])),
        "no activation": lambda x, weight: F.linear(x, weight.chunk(2)[0]) * F.linear(x, weight.chunk(2)[1]),
    },
    "linear_gelu": {
        "last tile not written": wrong.changed(
            linear_epilogue.linear_gelu_native, lambda y: F.pad(y[..., :-32], (0, 32))
        ),
        "no bias": lambda x, weight, bias: linear_epilogue.linear_gelu_native(x, weight, 0 * bias),
        "SiLU for GELU": lambda x, weight, bias: F.silu(F.linear(x, weight, bias)),
    },
    "batched": {
        "last tile not written": wrong.changed(linear_batched.batched_native, lambda y: F.pad(y[..., :-32], (0, 32))),
        "the weight not transposed": lambda x, weight: torch.bmm(x, weight),
        "the weight of the next": lambda x, weight: linear_batched.batched_native(x, weight.roll(1, 0)),
    },
    "experts": {
        "the last expert left out": without_the_last,
        "the weight of the next": lambda x, weight, ends, sizes: linear_experts.experts_written(
            x, weight.roll(1, 0), ends, sizes
        ),
        "groups end 16 rows early": lambda x, weight, ends, sizes: linear_experts.experts_written(
            x, weight, ends, [sizes[0] - 16, *sizes[1:-1], sizes[-1] + 16]
        ),
    },
}
# by component: what is timed beside the levels at the typical shape, and in which directions
BESIDE: dict[str, dict[str, tuple[Callable[[], Function], str]]] = {
    "linear_gelu": {
        "1-epilogue": (lambda: linear_epilogue.linear_gelu_epilogue, "forward"),
        "3-max": (lambda: sides.compiled_with_every_knob(linear_epilogue.linear_gelu_native), "forward"),
    },
    "batched": {"0-unbind": (lambda: linear_batched.batched_unbound, "both")},
    "experts": {"1-padded": (lambda: linear_experts.experts_padded, "forward both")},
}


# What a width of 4096 computes more than one of 4095.
more_work = bound("%", "(wide - narrow) / narrow", wide=4096, narrow=4095)
# What copying the gradients of gate and up into one tensor reads and writes.
copied_gradients = bound("MB", "tokens * hidden * 2 * 2 * 2", tokens=8192, hidden=14336)
batch = bound("", "batch", batch=64)  # How many matmuls the batch has.
FP32, TF32, BF16 = (
    gpu("eager", f"{name} matmul", case="patterns/mixed-precision") for name in ("fp32", "tf32", "bf16")
)
FP8 = gpu("compile", "dynamic fp8 matmul", case="patterns/mixed-precision")
tf32_gain = bound("x", "fp32 / tf32", fp32=FP32, tf32=TF32)  # How many times as fast a matmul is in TF32 as in fp32.
bf16_gain = bound("x", "tf32 / bf16", tf32=TF32, bf16=BF16)  # How many times as fast a matmul is in bf16 as in TF32.
# How many times as fast a matmul is that is quantised to fp8 in the call as in bf16.
fp8_gain = bound("x", "bf16 / fp8", bf16=BF16, fp8=FP8)

LABELS = {
    "level-1-epilogue": {"label": "cuBLAS epilogue", "short": "epilogue", "role": "peer-1"},
    "level-3-max": {"label": "max-autotune", "role": "compile-max"},
    "level-0-unbind": {"label": "loop over unbind", "short": "unbind", "role": "rewrite-2"},
    "level-1-padded": {"label": "padded batch", "short": "padded", "role": "rewrite-2"},
    "rows-rows": {"label": "both by rows", "short": "rows, rows", "role": "eager"},
    "rows-columns": {"label": "weight by columns", "short": "rows, columns", "role": "rewrite"},
    "columns-rows": {"label": "x by columns", "short": "columns, rows", "role": "rewrite"},
    "columns-columns": {"label": "both by columns", "short": "columns, columns", "role": "rewrite"},
    "left-half": {"label": "x the left half of a wider tensor", "short": "left half", "role": "rewrite-2"},
    "every-other": {"label": "x every other column", "short": "every other", "role": "other"},
    "weight-copied": {"label": "weight by columns, copied first", "short": "weight-copied", "role": "other-2"},
    "larger": {"label": "sizes made larger", "short": "larger", "role": "rewrite"},
}
CASE = Case(
    question="What do merged products, layouts, sizes, epilogues and groups gain in linear layers?",
    check_at={
        "forward both": [
            {"part": "qkv", "tokens": 64, "width": 256},
            {"part": "linear_gelu", "tokens": 64, "width": 256},
            {"part": "gate_up", "tokens": 64, "width": 128, "hidden": 256},
            {"part": "batched", "batch": 4, "rows": 32, "width": 64},
            {"part": "experts", "experts": 4, "tokens": 128, "width": 64, "hidden": 96},
        ],
        "forward": [{"part": "layout", "rows": 64, "inner": 128, "columns": 256}],
        "both": [{"part": "odd", "rows": 64, "inner": 95, "columns": 250}],
    },
)

"""Redesigns that change FLOPs per byte: weights of one byte, products that are merged, and layers that are wide."""

from collections.abc import Iterable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from snippets.patterns.compute_intensity_decode import converted, in_the_product, quantised, restored
from tests.benchmarks import alike
from tests.benchmarks.bounds import bound, captured, ceiling, gpu
from tests.benchmarks.case import Case, Point, Workload
from tests.benchmarks.own import own
from tests.benchmarks.sides import compiled_with_every_knob

WEIGHTS = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
LARGE = 8192
FEW = ("eager", "converted", "compile", "inside")


def points(device: torch.device) -> Iterable[Point]:
    """Decode from 1 to 1024 rows; three products of one input; the same FLOPs in products of four widths."""
    if device.type == "cpu":
        yield Point({"rows": 1, "inner": 1024, "columns": 1024}, "float32", modes=("calls",), part="int8")
        yield Point({"rows": 64, "columns": 512}, "float32", modes=("calls",), part="qkv")
        yield Point({"width": 256, "rows": 1024}, "float32", modes=("calls",), part="square")
        return
    for rows in (1, 4, 16, 64, 256, 1024):
        names = None if rows in (1, 16) else FEW  # max-autotune is slow to build
        shape = {"rows": rows, "inner": LARGE, "columns": LARGE}
        yield Point(shape, "bfloat16", variants=names, part="int8", name=of_rows("int8", rows))
    for rows in (1, 16, 64):
        shape = {"rows": rows, "inner": LARGE, "columns": LARGE}
        yield Point(shape, "bfloat16", variants=FEW, part="fp8", name=of_rows("fp8", rows))
    for rows in (1, 64, 4096):
        shape, name = {"rows": rows, "columns": 4096}, of_rows("qkv", rows)
        yield Point(shape, "bfloat16", modes=("device", "graph"), part="qkv", name=name)
    for width in (64, 256, 1024, 4096):
        shape = {"width": width, "rows": 2**35 // width**2}
        yield Point(shape, "bfloat16", part="square", name=f"width {width}")


def of_rows(part: str, rows: int) -> str:
    return f"{part} {rows} row{'s' * (rows > 1)}"


def prepare(point: Point, device: torch.device) -> Workload:
    """A layer with weights of one byte, query, key and value of one input, or a square layer."""
    make = {"qkv": of_merged, "square": of_wide}.get(point.part) or partial(of_decode, point.part)
    return make(*point.shape.values(), getattr(torch, point.dtype), device)  # type: ignore[call-arg]


def of_decode(name: str, rows: int, inner: int, columns: int, dtype: torch.dtype, device: torch.device) -> Workload:
    """A linear layer with weights that one byte each holds; eager has the same weights in two."""
    x = torch.randn(rows, inner, device=device).to(dtype)
    small, scale = quantised(torch.randn(columns, inner, device=device) / inner**0.5, WEIGHTS[name])
    wide = restored(small, scale, dtype)
    functions: dict[str, alike.Function] = {
        "eager": lambda x, *_: F.linear(x, wide),
        "converted": converted,
        "compile": torch.compile(own(converted), dynamic=False),
        "compile-max": compiled_with_every_knob(own(converted)),
    }
    if device.type == "cuda" and rows <= 64:
        functions["inside"] = in_the_product

    def of(weights: Tensor, factor: Tensor = scale) -> alike.Function:
        return lambda *_: (F.linear(x.float(), weights.float()) * factor).to(dtype)

    return alike.workload(
        functions,
        [x, small, scale],
        rows * columns * dtype.itemsize,
        flops=2 * rows * inner * columns,
        mix="read",
        reference=lambda x, small, scale: F.linear(x, small.double()) * scale,
        wrong={
            "5% too large": of(small, 1.05 * scale),
            "each column has its neighbour's scale": of(small, scale.roll(1) * 1.03),
            "an eighth of the terms left out": of(F.pad(small.float()[:, inner // 8 :], (inner // 8, 0))),
            "weights without a sign": of(small.float().abs()),
        },
    )


def of_merged(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Workload:
    """Query, key and value of grouped attention: the first as wide as the input, the others a quarter of that."""
    x = torch.randn(rows, columns, device=device).to(dtype)
    sizes = [columns, columns // 4, columns // 4]
    weights = [(torch.randn(size, columns, device=device) / columns**0.5).to(dtype) for size in sizes]

    def merged(x: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        return F.linear(x, weights).split(sizes, -1)

    return alike.workload(
        {"eager": lambda x, _: tuple(F.linear(x, weight) for weight in weights), "merged": merged},
        [x, torch.cat(weights)],
        rows * sum(sizes) * dtype.itemsize,
        flops=2 * rows * columns * sum(sizes),
        mix="read",
        reference=merged,
        results=lambda returned: dict(zip(("query", "key", "value"), returned, strict=True)),
        spoilt={
            "key and value exchanged": lambda right: {**right, "key": right["value"], "value": right["key"]},
            "query 5% too large": lambda right: {**right, "query": 1.05 * right["query"]},
            "the last eighth of the values is not written": lambda right: {**right, "value": alike.cut(right["value"])},
        },
    )


def of_wide(width: int, rows: int, dtype: torch.dtype, device: torch.device) -> Workload:
    """A square layer. With a quarter of the rows, twice the width has as many FLOPs, and half the bytes."""
    x = torch.randn(rows, width, device=device).to(dtype)
    weight = (torch.randn(width, width, device=device) / width**0.5).to(dtype)
    wrong = {"the weight is not transposed": lambda x, weight: x @ weight}
    return alike.workload(
        {"eager": F.linear}, [x, weight], x.nbytes, 2 * rows * width**2, wrong=wrong, spoilt=alike.SPOILT
    )


MATRIX = ceiling("bfloat16", "burst", case="validation/roofline")
COPY = ceiling("copy", case="validation/roofline")
READ = ceiling("read", case="patterns/compute-intensity")
# The intensity from which on the card computes rather than waits for memory.
ridge = bound("FLOP/byte", "matrix / memory", matrix=MATRIX, memory=COPY)
# FLOPs per byte of a layer before its redesign.
intensity_before = bound("", "before", before=captured("redesigns", "{line}"))
# FLOPs per byte of a layer after its redesign.
intensity_after = bound("", "after", after=captured("redesigns", "{line}", which=2))
one_row = bound("FLOP/byte", "2 / width", width=2)  # FLOPs per byte of one row: two for each weight.
square = bound("FLOP/byte", "2 * n**3 / (3 * width * n**2)", n=8192, width=2)  # FLOPs per byte of a square matmul.
# How many rows bring a layer with bf16 weights to the ridge point.
rows_to_ridge = bound("", "matrix / read", matrix=MATRIX, read=ceiling("read", case="validation/roofline"))
intensity = bound("", "2 * rows * width**2 / (2 * (2 * rows * width + width**2))")  # FLOPs per byte of a square layer.
# What a square layer's bytes take at the rate of a copy.
layer_bytes = bound("us", "2 * (2 * rows * width + width**2) / copy", copy=COPY)
# What a square layer's FLOPs take at the matrix rate.
layer_flops = bound("us", "2 * rows * width**2 / matrix", matrix=MATRIX)
# How many times the bytes of the widest layer the narrowest moves.
narrow_over_wide = bound(
    "x", "narrow / wide", narrow=8388608 * 64 * 4 + 64 * 64 * 2, wide=2048 * 4096 * 4 + 4096 * 4096 * 2
)
# How many times the bytes of the merged matmul the three move that are apart.
apart_over_merged = bound(
    "x", "apart / merged", apart=3 * 64 * 4096 + 6144 * 4096 + 6144 * 64, merged=64 * 4096 + 6144 * 4096 + 6144 * 64
)
# What reading the weights of a narrow matmul takes.
narrow_weights = bound("us", "inner * columns * width / read", inner=4096, columns=1024, width=2, read=READ)
# What five bytes for each weight take at the rate of a copy.
conversion = bound(
    "us", "5 * weights / copy", weights=67108864, copy=ceiling("copy", case="patterns/compute-intensity")
)
# How many times as fast the matmul is that converts inside.
inside_gain = bound("x", "eager / inside", eager=gpu("eager", "{at}"), inside=gpu("inside", "{at}"))
# What reading one byte for each weight takes.
int8_weights = bound("us", "weights / read", weights=67108864, read=READ)
# What a matmul takes for each of its rows.
row_time = bound("us", "time / rows", time=gpu("product", "{at}", case="validation/roofline"))

LABELS = {
    "inside": {"label": "converted in the product", "short": "in the product", "role": "ours"},
    "converted": {"label": "eager, converted before", "short": "converted", "role": "rewrite"},
    "merged": {"label": "one product", "role": "rewrite"},
}
CASE = Case(
    question="What do fewer bytes, more rows, one product for several and wider layers gain on each side of the ridge?",
    check_at={
        "forward": [
            {"part": "int8", "rows": 4, "inner": 512, "columns": 256},
            {"part": "fp8", "rows": 4, "inner": 512, "columns": 256},
            {"part": "qkv", "rows": 16, "columns": 256},
            {"part": "square", "width": 64, "rows": 256},
        ]
    },
)

"""Redesigns that change FLOPs per byte: weights of one byte, products that are merged, and layers that are wide."""

from collections.abc import Callable, Iterable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from snippets.patterns.compute_intensity_decode import converted, in_the_product, quantised, restored
from tests.benchmarks.bounds import bound, captured, ceiling, gpu
from tests.benchmarks.case import Call, Case, Point, Results, Variant, Workload
from tests.benchmarks.own import own
from tests.benchmarks.sides import compiled_with_every_knob, tupled

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
        names = None if rows in (1, 16) else FEW  # every knob is slow to build
        shape = {"rows": rows, "inner": LARGE, "columns": LARGE}
        yield Point(shape, "bfloat16", variants=names, part="int8")
    for rows in (1, 16, 64):
        yield Point({"rows": rows, "inner": LARGE, "columns": LARGE}, "bfloat16", variants=FEW, part="fp8")
    for rows in (1, 64, 4096):
        yield Point({"rows": rows, "columns": 4096}, "bfloat16", modes=("device", "graph"), part="qkv")
    for width in (64, 256, 1024, 4096):
        yield Point({"width": width, "rows": 2**35 // width**2}, "bfloat16", part="square")


def prepare(point: Point, device: torch.device) -> Workload:
    """A layer with weights of one byte, query, key and value of one input, or a square layer."""
    make = {"qkv": of_merged, "square": of_wide}.get(point.part) or partial(of_decode, point.part)
    return make(*point.shape.values(), getattr(torch, point.dtype), device)  # type: ignore[call-arg]


def of_decode(name: str, rows: int, inner: int, columns: int, dtype: torch.dtype, device: torch.device) -> Workload:
    """A linear layer with weights that one byte each holds; eager has the same weights in two."""
    x = torch.randn(rows, inner, device=device).to(dtype)
    small, scale = quantised(torch.randn(columns, inner, device=device) / inner**0.5, WEIGHTS[name])
    wide = restored(small, scale, dtype)
    calls: dict[str, Callable[[], Tensor]] = {
        "eager": partial(F.linear, x, wide),
        "converted": partial(converted, x, small, scale),
        "compile": partial(torch.compile(own(converted), dynamic=False), x, small, scale),
        "compile-max": partial(compiled_with_every_knob(own(converted)), x, small, scale),
    }
    if device.type == "cuda" and rows <= 64:
        calls["inside"] = partial(in_the_product, x, small, scale)

    def of(weights: Tensor, factor: Tensor = scale) -> Callable[[Results], Results]:
        return lambda baseline: {"output": (F.linear(x.float(), weights.float()) * factor).to(dtype)}

    return Workload(
        variants={name: variant(call, name in ("compile-max", "inside")) for name, call in calls.items()},
        baseline="eager",
        reference=lambda: {"output": F.linear(x.double(), small.double()) * scale.double()},
        bytes_read=x.nbytes + small.nbytes + scale.nbytes,
        bytes_written=rows * columns * dtype.itemsize,
        flops=2 * rows * inner * columns,
        mix="read",
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
    all_ = torch.cat(weights)

    def apart() -> tuple[Tensor, ...]:
        return tuple(F.linear(x, weight) for weight in weights)

    def merged() -> tuple[Tensor, ...]:
        return F.linear(x, all_).split(sizes, -1)

    def results(returned: object) -> Results:
        return dict(zip(("query", "key", "value"), tupled(returned), strict=True))  # type: ignore[arg-type]

    def reference() -> Results:
        return results(tuple(F.linear(x.double(), weight.double()) for weight in weights))

    return Workload(
        variants={"eager": variant(apart, results=results), "merged": variant(merged, results=results)},
        baseline="eager",
        reference=reference,
        bytes_read=x.nbytes + all_.nbytes,
        bytes_written=rows * sum(sizes) * dtype.itemsize,
        flops=2 * rows * columns * sum(sizes),
        mix="read",
        wrong={
            "key and value exchanged": lambda right: {**right, "key": right["value"], "value": right["key"]},
            "query 5% too large": lambda right: {**right, "query": 1.05 * right["query"]},
            "the last eighth of the values is not written": lambda right: {**right, "value": unwritten(right["value"])},
        },
    )


def of_wide(width: int, rows: int, dtype: torch.dtype, device: torch.device) -> Workload:
    """A square layer. With a quarter of the rows, twice the width has as many FLOPs, and half the bytes."""
    x = torch.randn(rows, width, device=device).to(dtype)
    weight = (torch.randn(width, width, device=device) / width**0.5).to(dtype)
    return Workload(
        variants={"eager": variant(partial(F.linear, x, weight))},
        baseline="eager",
        reference=lambda: {"output": F.linear(x.double(), weight.double())},
        bytes_read=x.nbytes + weight.nbytes,
        bytes_written=x.nbytes,
        flops=2 * rows * width**2,
        wrong={
            "5% too large": lambda right: {"output": 1.05 * right["output"]},
            "the last eighth is not written": lambda right: {"output": unwritten(right["output"])},
            "the weight is not transposed": lambda right: {"output": x @ weight},
        },
    )


def variant(
    call: Callable[[], Tensor | tuple[Tensor, ...]],
    chooses_by_timing: bool = False,
    results: Callable[[object], Results] = lambda returned: {"output": returned},  # type: ignore[dict-item]
) -> Variant:
    def build() -> Call:
        call()  # compiles
        return call

    return Variant(build, results, chooses_by_timing=chooses_by_timing)


def unwritten(t: Tensor) -> Tensor:
    """The last columns were never written."""
    size = max(1, t.shape[-1] // 8)
    return F.pad(t[..., :-size], (0, size))


@bound(
    "FLOP/byte",
    matrix=ceiling("bfloat16", "burst", case="validation/roofline"),
    memory=ceiling("copy", case="validation/roofline"),
)
def ridge(matrix: float, memory: float) -> float:
    """The intensity from which on the card computes rather than waits for memory."""
    return matrix / memory


@bound("", before=captured("redesigns", "{line}"))
def intensity_before(before: float) -> float:
    """FLOPs per byte of a layer before its redesign."""
    return before


@bound("", after=captured("redesigns", "{line}", which=2))
def intensity_after(after: float) -> float:
    """FLOPs per byte of a layer after its redesign."""
    return after


@bound("FLOP/byte", width=2)
def one_row(width: float) -> float:
    """FLOPs per byte of one row: two for each weight."""
    return 2 / width


@bound("FLOP/byte", n=8192, width=2)
def square(n: float, width: float) -> float:
    """FLOPs per byte of a square matmul."""
    return 2 * n**3 / (3 * width * n**2)


@bound(
    "",
    matrix=ceiling("bfloat16", "burst", case="validation/roofline"),
    read=ceiling("read", case="validation/roofline"),
)
def rows_to_ridge(matrix: float, read: float) -> float:
    """How many rows bring a layer with bf16 weights to the ridge point."""
    return matrix / read


@bound("")
def intensity(rows: float, width: float) -> float:
    """FLOPs per byte of a square layer."""
    return 2 * rows * width**2 / (2 * (2 * rows * width + width**2))


@bound("us", copy=ceiling("copy", case="validation/roofline"))
def layer_bytes(rows: float, width: float, copy: float) -> float:
    """What a square layer's bytes take at the rate of a copy."""
    return 2 * (2 * rows * width + width**2) / copy


@bound("us", matrix=ceiling("bfloat16", "burst", case="validation/roofline"))
def layer_flops(rows: float, width: float, matrix: float) -> float:
    """What a square layer's FLOPs take at the matrix rate."""
    return 2 * rows * width**2 / matrix


@bound("x", narrow=8388608 * 64 * 4 + 64 * 64 * 2, wide=2048 * 4096 * 4 + 4096 * 4096 * 2)
def narrow_over_wide(narrow: float, wide: float) -> float:
    """How many times the bytes of the widest layer the narrowest moves."""
    return narrow / wide


@bound("x", apart=3 * 64 * 4096 + 6144 * 4096 + 6144 * 64, merged=64 * 4096 + 6144 * 4096 + 6144 * 64)
def apart_over_merged(apart: float, merged: float) -> float:
    """How many times the bytes of the merged matmul the three move that are apart."""
    return apart / merged


@bound("us", inner=4096, columns=1024, width=2, read=ceiling("read", case="patterns/compute-intensity"))
def narrow_weights(inner: float, columns: float, width: float, read: float) -> float:
    """What reading the weights of a narrow matmul takes."""
    return inner * columns * width / read


@bound("us", weights=67108864, copy=ceiling("copy", case="patterns/compute-intensity"))
def conversion(weights: float, copy: float) -> float:
    """What five bytes for each weight take at the rate of a copy."""
    return 5 * weights / copy


@bound("x", eager=gpu("eager", "{at}"), inside=gpu("inside", "{at}"))
def inside_gain(eager: float, inside: float) -> float:
    """How many times as fast the matmul is that converts inside."""
    return eager / inside


@bound("us", weights=67108864, read=ceiling("read", case="patterns/compute-intensity"))
def int8_weights(weights: float, read: float) -> float:
    """What reading one byte for each weight takes."""
    return weights / read


@bound("us", time=gpu("product", "{at}", case="validation/roofline"))
def row_time(time: float, rows: float) -> float:
    """What a matmul takes for each of its rows."""
    return time / rows


CHECK_AT = {
    "forward": [
        {"part": "int8", "rows": 4, "inner": 512, "columns": 256},
        {"part": "fp8", "rows": 4, "inner": 512, "columns": 256},
        {"part": "qkv", "rows": 16, "columns": 256},
        {"part": "square", "width": 64, "rows": 256},
    ]
}
LABELS = {
    "inside": {"label": "converted in the product", "short": "in the product", "role": "ours"},
    "converted": {"label": "eager, converted before", "short": "converted", "role": "rewrite"},
    "merged": {"label": "one product", "role": "rewrite"},
}
POINTS = {  # as pages name them
    "int8 1 row": "forward int8 1x8192x8192 bfloat16 device",
    "int8 4 rows": "forward int8 4x8192x8192 bfloat16 device",
    "int8 16 rows": "forward int8 16x8192x8192 bfloat16 device",
    "int8 64 rows": "forward int8 64x8192x8192 bfloat16 device",
    "int8 256 rows": "forward int8 256x8192x8192 bfloat16 device",
    "int8 1024 rows": "forward int8 1024x8192x8192 bfloat16 device",
    "fp8 1 row": "forward fp8 1x8192x8192 bfloat16 device",
    "fp8 16 rows": "forward fp8 16x8192x8192 bfloat16 device",
    "fp8 64 rows": "forward fp8 64x8192x8192 bfloat16 device",
    "qkv 1 row": "forward qkv 1x4096 bfloat16 device",
    "qkv 64 rows": "forward qkv 64x4096 bfloat16 device",
    "qkv 4096 rows": "forward qkv 4096x4096 bfloat16 device",
    "width 64": "forward square 64x8388608 bfloat16 device",
    "width 256": "forward square 256x524288 bfloat16 device",
    "width 1024": "forward square 1024x32768 bfloat16 device",
    "width 4096": "forward square 4096x2048 bfloat16 device",
}
CASE = Case(
    name="patterns/compute-intensity",
    question="What do fewer bytes, more rows, one product for several and wider layers gain on each side of the ridge?",
    points=points,
    prepare=prepare,
)

"""Matmuls in fp8, by how operands are scaled and sums added up, and linear layers, beside cuBLAS in fp8 and bf16."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import fp8_matmul as kernel
from snippets.kernels.fp8_matmul_error import emulated
from tests.benchmarks import sides, wrong
from tests.benchmarks.case import Case, Point, Variant, Workload

E4M3 = torch.float8_e4m3fn
SHAPES = {
    "large": {"rows": 8192, "columns": 8192, "inner": 8192},
    "medium": {"rows": 4096, "columns": 4096, "inner": 4096},
    "typical": {"rows": 8192, "columns": 14336, "inner": 4096},
}
SKINNY = {"rows": 16, "columns": 8192, "inner": 8192}  # as in decoding
LAYERS = SHAPES | {"small": {"rows": 8192, "columns": 4096, "inner": 4096}}
del LAYERS["medium"]
SCALES = ("rows", "blocks")


def points(device: torch.device) -> Iterator[Point]:
    """Products of operands that are quantised already, and layers, which quantise bf16."""
    if device.type == "cpu":
        yield Point(
            {"rows": 256, "columns": 256, "inner": 256}, "float32", modes=("calls",), variants=("eager",), part="rows"
        )
        return
    for part in SCALES:
        for name, shape in SHAPES.items():
            yield Point(shape, "float8_e4m3fn", modes=("burst",), part=part, name=f"{name} {part}")
        yield Point(SKINNY, "float8_e4m3fn", modes=("graph",), part=part, name=f"skinny {part}")
    for part in ("bf16", *SCALES):
        for name, shape in LAYERS.items():
            if part == "bf16":  # as a model's parts have it, which are measured without a kernel of ours
                shape = {"rows": shape["rows"], "columns": shape["columns"], "width": shape["inner"]}
            for direction in ("forward", "both"):
                called = f"{name} {part} layer{sides.SUFFIX[direction]}"
                yield Point(shape, "bfloat16", direction, modes=("burst",), part=f"{part} layer", name=called)


def prepare(point: Point, device: torch.device) -> Workload:
    scales, _, what = point.part.partition(" ")
    return layer(point, scales, device) if what else product(point, scales, device)


# ---- a product of operands that are quantised already ----------------------------------------------------------------


def quantised(x: Tensor, down: int, across: int) -> tuple[Tensor, Tensor]:
    """By PyTorch: a scale for so many rows and columns. It stands in for the kernel, which needs a GPU."""
    tiles = x.float().unflatten(1, (-1, across)).unflatten(0, (-1, down))
    scale = tiles.abs().amax((1, 3), keepdim=True) / torch.finfo(E4M3).max
    return (tiles / scale).to(E4M3).view(x.shape), scale[:, 0, :, 0].t().contiguous().t()


def whole(q: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """q * scale."""
    down, across = q.shape[0] // scale.shape[0], q.shape[1] // scale.shape[1]
    return q.to(dtype) * scale.to(dtype).repeat_interleave(down, 0).repeat_interleave(across, 1)


def product(point: Point, scales: str, device: torch.device) -> Workload:
    """a @ b.T in bf16. Where bf16 multiplies, its operands are what the quantised ones stand for."""
    rows, columns, inner = point.shape.values()
    dtype = torch.float32 if point.dtype == "float32" else torch.bfloat16
    strip = inner if scales == "rows" else 128
    a = quantised(torch.randn(rows, inner, device=device).to(dtype), 1, strip)
    b = quantised(torch.randn(columns, inner, device=device).to(dtype), 1 if scales == "rows" else 128, strip)

    def plain(columns_of_a: slice = slice(None)) -> Tensor:
        left, right = (whole(*q, torch.float32)[:, columns_of_a] for q in (a, b))
        return (left @ right.t()).to(dtype)

    def bf16() -> Callable[[], Tensor]:
        left, right = (whole(*q, torch.float32).bfloat16() for q in (a, b))
        return lambda: left @ right.t()

    given = a[0], a[1].squeeze(1) if scales == "rows" else a[1], b[0], b[1].squeeze(1) if scales == "rows" else b[1]
    ours = partial(kernel.fp8_matmul, *given, dtype)
    variants = {
        "eager": Variant(lambda: plain),
        "bf16": Variant(bf16),
        "ours": Variant(lambda: ours, binaries=lambda: sides.binaries(kernel, ours)),
        "scaled-mm": Variant(lambda: peer(*a, *b, scales, scales == "rows")),
    }
    if scales == "rows":
        variants |= {
            "exact": Variant(lambda: partial(ours, fast_accumulation=False)),
            "scaled-mm-exact": Variant(lambda: peer(*a, *b, scales, False)),
        }
    return Workload(
        variants=variants,
        baseline="eager",
        reference=lambda: {"output": whole(*a, torch.float64) @ whole(*b, torch.float64).t()},
        bytes_read=(rows + columns) * inner,
        bytes_written=rows * columns * dtype.itemsize,
        flops=2 * rows * columns * inner,
        wrong={
            "5% too large": lambda baseline: {"output": 1.05 * baseline["output"]},
            "last tile not written": lambda baseline: {"output": wrong.cut(plain)()},
            "an eighth of the terms left out": lambda baseline: {"output": plain(slice(inner // 8, None))},
        },
    )


def peer(a: Tensor, scale_a: Tensor, b: Tensor, scale_b: Tensor, scales: str, fast: bool) -> Callable[[], Tensor]:
    """cuBLAS's fp8, with a scale for each row, or for strips of a and squares of b."""
    if scales == "rows":
        return lambda: torch._scaled_mm(a, b.t(), scale_a, scale_b.t(), out_dtype=torch.bfloat16, use_fast_accum=fast)
    strips, squares = F.ScalingType.BlockWise1x128, F.ScalingType.BlockWise128x128
    of_b = scale_b.contiguous().t()
    return lambda: F.scaled_mm(a, b.t(), scale_a, strips, of_b, squares, output_dtype=torch.bfloat16)


# ---- a layer ----------------------------------------------------------------------------------------------------


class Emulated(torch.autograd.Function):
    """A linear layer whose three products have operands in fp8, by PyTorch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scales: str) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.scales = scales
        return multiplied(x, weight, scales, True)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        scales = ctx.scales
        return multiplied(dy, weight.t(), scales, True), multiplied(dy.t(), x.t(), scales, False), None


def multiplied(a: Tensor, b: Tensor, scales: str, squares: bool) -> Tensor:
    """In fp32; in fp64 what is given in fp64."""
    wide = torch.promote_types(a.dtype, torch.float32)
    left, right = emulated(a, scales).to(wide), emulated(b, scales, squares and scales == "blocks").to(wide)
    return (left @ right.t()).to(a.dtype)


def layer(point: Point, scales: str, device: torch.device) -> Workload:
    """x @ weight.T with its gradients. With "bf16", what PyTorch does with neither in fp8."""
    rows, columns, width = point.shape.values()
    dtype = getattr(torch, point.dtype)
    x, weight = torch.randn(rows, width, device=device).to(dtype), torch.randn(columns, width, device=device).to(dtype)
    plain = F.linear if scales == "bf16" else lambda x, weight: Emulated.apply(x, weight, scales)
    functions: dict[str, sides.Find | sides.Side] = {"eager": lambda: plain}
    if scales != "bf16":
        functions["ours"] = lambda: partial(kernel.fp8_linear, scales=scales)
    workload = sides.workload(
        point,
        kernel,
        {"x": x, "weight": weight},
        functions,
        bytes_read=0,  # no bound is drawn: matrix products take most of the time
        bytes_written=0,
        flops=2 * rows * width * columns * (1 if point.direction == "forward" else 3),
        mix="copy",
        wrong=wrong.usual(plain) | {"half of the terms left out": lambda x, weight: plain(zeroed(x), weight)},
    )
    return replace(
        workload, variants={name: workload.variants[name] for name in ("eager", "ours") if name in functions}
    )


def zeroed(x: Tensor) -> Tensor:
    """With the first half of its columns zero."""
    return x * (torch.arange(x.shape[1], device=x.device) >= x.shape[1] // 2)


LABELS = {
    "bf16": {"label": "bf16, cuBLAS", "short": "bf16", "role": "eager"},
    "scaled-mm": {"label": "scaled_mm", "role": "peer-1"},
    "scaled-mm-exact": {"label": "scaled_mm, sums in fp32", "short": "scaled_mm fp32", "role": "peer-2"},
    "exact": {"label": "ours, sums in fp32", "short": "ours fp32", "role": "other"},
}
CASE = Case(
    question="How fast are matmuls and linear layers in fp8, with scales for rows or for blocks?",
    check_at={
        "forward": [{"part": scales, "rows": 128, "columns": 256, "inner": 512} for scales in SCALES],
        "forward both": [
            {"part": f"{scales} layer", "rows": 128, "columns": 256, inner: 128}
            for scales, inner in (("bf16", "width"), *((scales, "inner") for scales in SCALES))
        ],
    },
)

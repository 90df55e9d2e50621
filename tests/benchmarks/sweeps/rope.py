"""Rotary position embedding: alternatives to its launch table."""

from collections.abc import Iterator

from tests.benchmarks.case import Point
from tests.benchmarks.kernels.rope import LARGE, shapes


def points() -> Iterator[Point]:
    for shape in LARGE:
        for direction in ("forward", "backward"):
            yield Point(shape, "bfloat16", direction)
    yield Point(shapes((4, 4096, 16, 4, 128))[0], "float32", "forward")
    yield Point(shapes((1, 512, 2, 2, 32768))[0], "bfloat16", "forward")


def alternatives(point: Point) -> list[dict[str, int]]:
    """Threads in a tile, of those how many along the heads, heads a thread at one time, how many times, and stages."""
    vec = 4 if point.dtype == "float32" else 8
    keys = ("TILE", "HEADS", "STEPS", "TURNS", "STAGES")
    return [
        {"VEC": vec} | dict(zip(keys, values, strict=True)) | {"num_warps": values[0] // 32}
        for values in (
            (128, 2, 2, 1, 1), (128, 2, 4, 1, 1), (128, 4, 2, 1, 1), (128, 1, 4, 1, 1), (64, 2, 2, 1, 1),
            (64, 2, 4, 1, 1), (128, 2, 2, 8, 1), (128, 2, 4, 2, 1), (128, 2, 1, 16, 3), (128, 2, 2, 4, 3),
            (128, 1, 1, 32, 4), (128, 8, 1, 4, 3), (64, 2, 1, 16, 4),
        )
    ]  # fmt: skip

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
    """Threads in a tile, of those how many along the heads, and heads a thread."""
    vec = 4 if point.dtype == "float32" else 8
    return [
        {"VEC": vec, "TILE": threads, "HEADS": heads, "STEPS": steps, "STREAM": stream, "num_warps": threads // 32}
        for threads, heads, steps, stream in (
            (128, 1, 1, 0), (128, 8, 1, 0), (128, 16, 1, 0), (128, 2, 2, 0), (128, 8, 2, 0), (128, 16, 2, 0),
            (128, 2, 4, 0), (128, 8, 4, 0), (64, 8, 2, 0), (256, 16, 2, 0), (128, 8, 2, 1), (128, 8, 4, 1),
        )
    ]  # fmt: skip

"""Rotary position embedding: alternatives to its launch table."""

from collections.abc import Iterator

from tests.benchmarks.case import Point
from tests.benchmarks.kernels.rope import CONTIGUOUS, LARGE, shapes


def points() -> Iterator[Point]:
    for part, shape in (*(("", shape) for shape in LARGE), (CONTIGUOUS, LARGE[0])):
        for direction in ("forward", "backward"):
            yield Point(shape, "bfloat16", direction, part=part)
    yield Point(shapes((4, 4096, 16, 4, 128))[0], "float32", "forward")
    yield Point(shapes((1, 512, 2, 2, 32768))[0], "bfloat16", "forward")


def alternatives(point: Point) -> list[dict[str, int]]:
    """Threads in a tile, of those how many along the heads, and heads a thread."""
    vec = 4 if point.dtype == "float32" else 8
    return [
        {"VEC": vec, "TILE": tile, "HEADS": heads, "STEPS": steps, "num_warps": tile // 32}
        for tile, heads, steps in (
            (128, 2, 2), (128, 2, 4), (128, 4, 2), (128, 1, 4), (64, 2, 2), (64, 2, 4), (256, 2, 2), (256, 2, 4),
            (512, 2, 4), (128, 4, 4), (128, 8, 2), (128, 2, 1), (128, 2, 8),
        )
    ]  # fmt: skip

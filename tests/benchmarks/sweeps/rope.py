"""Rotary position embedding: alternatives to its launch table."""

from collections.abc import Iterator

from tests.benchmarks.case import Point
from tests.benchmarks.kernels.rope import CONTIGUOUS, LARGE, shape


def points() -> Iterator[Point]:
    for part, sizes in (*(("", sizes) for sizes in LARGE.values()), (CONTIGUOUS, LARGE["typical"])):
        for direction in ("forward", "backward"):
            yield Point(sizes, "bfloat16", direction, part=part)
    yield Point(shape(4, 4096, 16, 4, 128), "float32", "forward")
    yield Point(shape(1, 512, 2, 2, 32768), "bfloat16", "forward")


def alternatives(point: Point) -> list[dict[str, int]]:
    """Threads in a tile, of those how many along the heads, and heads a thread."""
    vec = 4 if point.dtype == "float32" else 8
    return [
        {"VEC": vec, "TILE": tile, "HEADS": heads, "STEPS": steps, "num_warps": tile // 32}
        for tile, heads, steps in (
            (128, 2, 2), (128, 2, 4), (128, 4, 2), (128, 1, 4), (64, 2, 2), (64, 2, 4), (256, 2, 2), (256, 2, 4),
            (512, 2, 4), (128, 4, 4), (128, 8, 2), (128, 2, 1), (128, 2, 8),
            (256, 2, 1), (256, 1, 2), (256, 1, 4), (256, 4, 2), (512, 2, 2), (512, 1, 4), (512, 1, 2), (64, 1, 4),
            (64, 1, 2), (128, 1, 2), (512, 4, 2),
        )
    ]  # fmt: skip

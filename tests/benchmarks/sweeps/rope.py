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
    """Heads in registers at one time, how many times, and the threads that have a chunk of each."""
    vec = 4 if point.dtype == "float32" else 8
    return [
        {"VEC": vec, "CHUNKS": threads, "HEADS": heads, "STEPS": steps, "num_warps": threads // 32}
        for heads, steps, threads in (
            (1, 1, 128), (8, 1, 128), (4, 1, 128), (4, 2, 128), (4, 8, 128), (2, 4, 128), (2, 16, 128), (4, 1, 256),
        )
    ]  # fmt: skip

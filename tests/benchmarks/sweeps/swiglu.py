"""SwiGLU: alternatives to its launch table."""

from collections.abc import Iterator

from tests.benchmarks.case import Point

SHAPES = (
    ("", {"rows": 65536, "columns": 1024}, "bfloat16"),
    ("", {"rows": 16384, "columns": 14336}, "bfloat16"),
    ("", {"rows": 16384, "columns": 14336}, "float32"),
    ("", {"rows": 1024, "columns": 14336}, "bfloat16"),
    ("geglu", {"rows": 16384, "columns": 14336}, "bfloat16"),
    ("geglu_tanh", {"rows": 16384, "columns": 14336}, "bfloat16"),
    ("halves", {"rows": 65536, "columns": 1024}, "bfloat16"),
    ("halves", {"rows": 16384, "columns": 14336}, "bfloat16"),
)


def points() -> Iterator[Point]:
    for part, shape, dtype in SHAPES:
        for direction in ("forward", "backward"):
            yield Point(shape, dtype, direction, part=part)


def alternatives(point: Point) -> list[dict[str, int]]:
    """Elements a program and threads: 8 to 32 elements a thread."""
    sizes = ((512, 64), (1024, 128), (1024, 64), (2048, 256), (2048, 128), (4096, 512), (4096, 256), (8192, 1024))
    return [{"BLOCK": block, "num_warps": threads // 32} for block, threads in sizes]

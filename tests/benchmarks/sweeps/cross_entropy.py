"""Cross-entropy: alternatives to its launch table."""

from collections.abc import Iterator

from tests.benchmarks.case import Point

COLUMNS = (1000, 4096, 8192, 16384, 32000, 50257, 65536, 128256, 262144)


def points() -> Iterator[Point]:
    """Steps for the forward, which computes the gradient too; backwards that compute it all; two wrong guesses."""
    for columns in COLUMNS:
        shape = {"rows": max(1056, 2**27 // columns), "columns": columns}
        yield Point(shape | {"step": 1}, "bfloat16", "forward")
        if columns in (1000, 4096, 32000, 50257, 128256):
            yield Point(shape, "bfloat16", "backward")
    for columns in (4096, 32000, 128256):
        yield Point({"rows": max(1056, 2**26 // columns), "columns": columns, "step": 1}, "float32", "forward")
    for columns in (1000, 32000):
        yield Point({"rows": 2**27 // columns, "columns": columns, "losses": 2}, "bfloat16", "backward")
    yield Point({"rows": 4096, "columns": 32000}, "bfloat16", "forward")  # no gradient
    yield Point({"rows": 1056, "columns": 128256}, "bfloat16", "forward")


def alternatives(point: Point) -> list[dict[str, int]]:
    columns, group = point.shape["columns"], 8 if point.dtype == "bfloat16" else 4
    if point.direction == "forward":
        if columns <= 1024:
            return [
                {"ROWS": tile // 1024, "BLOCK": 1024, "num_warps": warps}
                for tile, warps in ((1024, 4), (2048, 4), (2048, 8), (4096, 8))
            ]
        # threads, how many 16 bytes a thread has of a tile, tiles kept
        some = {
            4096: ((512, 1, 1), (256, 2, 1), (256, 1, 2), (256, 1, 0)),
            8192: ((1024, 1, 1), (512, 2, 1), (512, 1, 2), (256, 1, 4), (512, 1, 0)),
            16384: ((512, 1, 0), (256, 1, 0), (1024, 1, 2), (512, 1, 4), (512, 2, 2), (1024, 2, 1), (1024, 1, 0)),
        }
        row = ((512, 1, 0), (256, 1, 0), (1024, 1, 0), (1024, 2, 0), (512, 2, 0), (1024, 1, 2), (512, 1, 4))
        some |= {32000: (*row, (1024, 1, 4), (1024, 2, 2), (512, 1, 8)), 50257: (*row, (1024, 1, 4), (1024, 2, 1))}
        wide = (*row[:5], (512, 2, 4), *((1024, 1, keep) for keep in (2, 3, 4, 5)), (1024, 2, 1))
        return [
            {"BLOCK": threads * pieces * group, "KEEP": keep, "num_warps": threads // 32}
            for threads, pieces, keep in some.get(columns, wide)
        ]
    if "losses" in point.shape:
        if columns <= 1024:
            return [{"ROWS": 2, "BLOCK": 1024, "PROGRAMS": p, "num_warps": 4} for p in (4, 8, 16)]
        return [
            {"BLOCK": threads * group, "PROGRAMS": programs, "num_warps": threads // 32}
            for threads, programs in ((512, 4), (256, 8), (1024, 2), (512, 2), (512, 8), (128, 16))
        ]
    if columns <= 1024:
        return [{"ROWS": rows, "BLOCK": 1024, "PROGRAMS": 8, "num_warps": 4} for rows in (1, 2, 4)]
    return [
        {"BLOCK": threads * wide * group, "PROGRAMS": 4, "num_warps": threads // 32}
        for threads, wide in ((128, 1), (256, 1), (512, 1), (1024, 1), (256, 2), (128, 2))
    ]

"""Softmax: alternatives to its launch table."""

from collections.abc import Iterator

from tests.benchmarks.case import Point

COLUMNS = (1024, 2048, 4096, 8192, 9000, 16384, 32768, 65536, 131072)
Options = dict[str, int]

# (tiles, columns of a tile, threads) of a program, by row length: whole rows, and parts of rows
WHOLE = {
    2048: ((1, 2048, 128), (1, 2048, 256), (2, 1024, 128)),
    4096: ((1, 4096, 128), (1, 4096, 256), (1, 4096, 512), (2, 2048, 256), (1, 2048, 128)),
    8192: ((1, 8192, 256), (1, 8192, 512), (1, 8192, 1024), (2, 4096, 512), (1, 4096, 256)),
    9000: ((5, 2048, 256), (9, 1024, 128), (3, 4096, 512), (3, 1024, 128), (5, 1024, 128), (3, 2048, 256)),
    16384: ((1, 16384, 512), (1, 16384, 1024), (1, 8192, 256), (1, 8192, 512), (1, 8192, 1024), (1, 4096, 256)),
}
WIDE = (
    (1, 16384, 1024), (1, 16384, 512), (1, 8192, 1024), (1, 8192, 512), (1, 8192, 256), (1, 4096, 512), (1, 4096, 256),
    (1, 4096, 128),
)  # fmt: skip


def points() -> Iterator[Point]:
    for direction in ("forward", "backward"):
        for columns in COLUMNS:
            yield Point({"rows": max(1024, 2**27 // columns), "columns": columns}, "bfloat16", direction)
        for columns in (4096, 32768):
            yield Point({"rows": 2**26 // columns, "columns": columns}, "float32", direction)


def alternatives(point: Point) -> list[Options]:
    columns, bits = point.shape["columns"], 32 if point.dtype == "float32" else 16
    if columns == 1024:
        sizes = ((1, 2), (1, 4), (2, 4), (2, 8), (4, 4))
        return [{"ROWS": rows, "BLOCK": 1024, "num_warps": warps} for rows, warps in sizes]
    plans = [parts(columns, *plan) for plan in WHOLE.get(columns, WIDE)]
    if columns == 32768:
        plans.append(parts(columns, 1, 32768, 1024))
    if columns >= 9000:
        plans += [looks(size, bits) for size in ((2048, 4096) if columns == 9000 else (4096, 8192))]
    return plans


def parts(columns: int, tiles: int, block: int, threads: int) -> Options:
    """Rows cut into parts of that many tiles."""
    count = -(-columns // (tiles * block))
    return {"PARTS": count, "TILES": tiles, "BLOCK": block, "SLOTS": threads, "num_warps": threads // 32}


def looks(block: int, bits: int) -> Options:
    return {"BLOCK": block, "LANES": block * bits // 128, "num_warps": block // 256}

"""Softmax: alternatives to its launch table."""

from collections.abc import Iterator

from tests.benchmarks.case import Point
from tests.benchmarks.sweeps import MULTIPROCESSORS

COLUMNS = (1024, 2048, 4096, 8192, 9000, 16384, 32768, 65536, 131072)
Options = dict[str, int]

# A row in registers: threads, and for how many programs a multiprocessor the next rows are fetched meanwhile
ROW = {
    2048: ((128, 8), (128, 16), (128, 0), (256, 4)),
    4096: ((128, 8), (128, 0), (256, 4), (256, 0)),
    8192: ((256, 4), (256, 0), (512, 2), (128, 0)),
    9000: ((256, 0), (256, 3), (512, 2), (512, 0), (128, 0)),
    16384: ((512, 2), (512, 1), (512, 0), (1024, 1), (256, 0)),
    32768: ((1024, 1), (1024, 0), (1024, 2), (512, 1), (512, 0)),
}
# backward: (tiles, columns of a tile, threads) of a program that holds a row
WHOLE = {
    2048: ((1, 2048, 128), (1, 2048, 256), (2, 1024, 128)),
    4096: ((1, 4096, 128), (1, 4096, 256), (1, 4096, 512), (2, 2048, 256)),
    8192: ((1, 8192, 256), (1, 8192, 512), (1, 8192, 1024), (2, 4096, 512)),
    9000: ((5, 2048, 256), (9, 1024, 128), (3, 4096, 512)),
    16384: ((1, 16384, 512), (1, 16384, 1024)),
    32768: ((1, 32768, 1024),),
}
# (columns, threads) of a program that holds a part of a row
PARTS = ((16384, 1024), (16384, 512), (8192, 512), (8192, 256), (4096, 256), (4096, 128))


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
    plans = []
    if point.direction == "forward":
        plans += [row(columns, bits, *plan) for plan in ROW.get(columns, ())]
    else:
        plans += [whole(*plan) for plan in WHOLE.get(columns, ())]
    if columns >= 32768:
        plans += [parts(columns, *plan) for plan in PARTS]
    if columns >= 9000:
        plans += [looks(size, bits) for size in ((2048, 4096) if columns == 9000 else (4096, 8192))]
    return plans


def row(columns: int, bits: int, threads: int, ahead: int) -> Options:
    """A row in registers, eight columns of a tile a thread."""
    tile = 8 * threads
    return {
        "TILES": -(-columns // tile),
        "BLOCK": tile,
        "AHEAD": MULTIPROCESSORS * ahead * 16 // bits,
        "num_warps": threads // 32,
    }


def whole(tiles: int, tile: int, threads: int) -> Options:
    more = {} if tiles == 1 else {"TILES": tiles}
    return {"PARTS": 1, "BLOCK": tile, "SLOTS": threads, "num_warps": threads // 32} | more


def parts(columns: int, size: int, threads: int) -> Options:
    """Rows cut into parts of that many columns."""
    return {"PARTS": -(-columns // size), "BLOCK": size, "SLOTS": threads, "num_warps": threads // 32}


def looks(block: int, bits: int) -> Options:
    return {"BLOCK": block, "LANES": block * bits // 128, "num_warps": block // 256}

"""Softmax: alternatives to its launch table."""

from collections.abc import Iterator

from tests.benchmarks.case import Point
from tests.benchmarks.sweeps import MULTIPROCESSORS, fetched_parts, held

COLUMNS = (1024, 2048, 4096, 8192, 9000, 16384, 32768, 65536, 131072)
Options = dict[str, int]

# A row in registers: threads, for how many programs a multiprocessor the next rows are fetched meanwhile, packed
ROW = {
    2048: ((128, 8, False), (128, 16, False), (128, 0, False), (256, 4, False), (128, 8, True)),
    4096: ((128, 8, False), (128, 0, False), (256, 4, False), (128, 8, True), (128, 4, False), (128, 16, False),
           (256, 0, False), (256, 8, False), (512, 0, False), (512, 2, False)),
    8192: ((256, 4, False), (256, 0, False), (512, 2, False), (256, 4, True), (128, 8, True)),
    9000: ((256, 0, False), (256, 3, False), (512, 2, False), (256, 0, True), (256, 4, True), (512, 3, True)),
    16384: ((512, 2, False), (512, 0, False), (512, 2, True), (512, 4, True), (512, 0, True), (256, 4, True),
            (1024, 0, False), (1024, 1, False), (512, 1, False), (512, 1, True), (1024, 2, True)),
    32768: ((1024, 1, False), (1024, 0, False), (1024, 1, True), (1024, 2, True), (1024, 0, True), (512, 2, True),
            (512, 0, True)),
}  # fmt: skip
# backward: (tiles, columns of a tile, threads) of a program that holds a row
WHOLE = {
    2048: ((1, 2048, 128), (1, 2048, 256), (2, 1024, 128)),
    4096: ((1, 4096, 128), (1, 4096, 256), (1, 4096, 512), (2, 2048, 256)),
    8192: ((1, 8192, 256), (1, 8192, 512), (1, 8192, 1024), (2, 4096, 512)),
    9000: ((5, 2048, 256), (9, 1024, 128), (3, 4096, 512)),
    16384: ((1, 16384, 512), (1, 16384, 1024)),
    32768: ((1, 32768, 1024),),
}
# A part of a row: columns, threads, and in the forward for how many columns the next ones are fetched
FORWARD_PARTS = ((16384, 256, 2**21), (16384, 256, 2**20), (16384, 256, 2**22), (16384, 256, 0), (16384, 128, 2**21),
                 (8192, 128, 2**21), (8192, 256, 2**21), (32768, 512, 2**21))  # fmt: skip
BACKWARD_PARTS = ((16384, 1024), (16384, 512), (8192, 512), (8192, 256), (4096, 256), (4096, 128))


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
        plans += [row(columns, bits, *plan) for plan in ROW.get(columns, ()) if bits == 16 or not plan[2]]
    else:
        plans += [whole(*plan) for plan in WHOLE.get(columns, ())]
    if columns == 32768 and bits == 16 and point.direction == "forward":
        plans += [held(1, 16, 2048, 256, PACKED=True, AHEAD=ahead) for ahead in (32, 64, 128)]
    if columns >= 32768:
        if point.direction == "forward":
            plans += [fetched_parts(columns, bits, *plan) for plan in FORWARD_PARTS]
        else:
            cut = [(size * 16 // bits, threads) for size, threads in BACKWARD_PARTS]
            plans += [held(-(-columns // size), 1, size, threads) for size, threads in cut]
    if columns >= 9000:
        plans += [looks(size, bits) for size in ((2048, 4096) if columns == 9000 else (4096, 8192))]
    return plans


def row(columns: int, bits: int, threads: int, ahead: int, packed: bool) -> Options:
    """A row in registers, eight columns of a tile a thread."""
    ahead = MULTIPROCESSORS * ahead * 16 // bits
    return held(1, -(-columns // (8 * threads)), 8 * threads, threads, PACKED=packed, AHEAD=ahead)


def whole(tiles: int, tile: int, threads: int) -> Options:
    return held(1, tiles, tile, threads)


def looks(block: int, bits: int) -> Options:
    return {"BLOCK": block, "LANES": block * bits // 128, "num_warps": block // 256}

"""Softmax with dropout: alternatives to its launch table."""

from functools import partial

from tests.benchmarks import sweeps
from tests.benchmarks.case import Point

COLUMNS = (1024, 2048, 4096, 8192, 9000, 16384, 32768, 65536, 131072)
# (rows, warps) of a program that holds whole rows in registers: 16, 32 or 64 elements a thread
WHOLE = {
    1024: ((1, 1), (1, 2), (2, 2), (2, 4), (4, 4), (8, 8)),
    2048: ((1, 2), (1, 4), (2, 4), (2, 8)),
    4096: ((1, 4), (1, 8), (2, 8)),
    8192: ((1, 8), (1, 16)),
    16384: ((1, 16), (1, 32)),
}
# (tiles, columns of a tile) of a program that holds one row in registers, eight elements of a tile in each thread
TILES = {
    2048: ((2, 1024), (1, 2048)),
    4096: ((4, 1024), (2, 2048)),
    8192: ((8, 1024), (4, 2048), (2, 4096)),
    9000: ((9, 1024), (5, 2048), (3, 4096), (2, 8192)),
    16384: ((8, 2048), (4, 4096), (2, 8192)),
    32768: ((8, 4096), (4, 8192)),
    65536: ((8, 8192),),
}
# (columns of a tile, warps, programs a multiprocessor; 0: one a row) of two looks
LOOKS = {
    9000: ((2048, 8, 0),),
    16384: ((4096, 16, 0), (8192, 32, 0)),
    32768: ((4096, 16, 0), (8192, 16, 0), (8192, 32, 0), (16384, 32, 0)),
    65536: ((4096, 16, 0), (8192, 16, 0), (8192, 32, 0), (16384, 32, 0), (16384, 32, 1), (8192, 32, 2)),
    131072: ((8192, 32, 0), (16384, 32, 0), (8192, 16, 2), (8192, 32, 1), (16384, 32, 1), (8192, 32, 2)),
}
points = partial(sweeps.points, COLUMNS, (4096, 32768))


def alternatives(point: Point) -> list[dict[str, int]]:
    columns = point.shape["columns"]
    block = 1 << (columns - 1).bit_length()
    whole = [{"ROWS": rows, "BLOCK": block, "num_warps": warps} for rows, warps in WHOLE.get(columns, ())]
    tiles = [{"TILES": count, "BLOCK": tile, "num_warps": tile // 256} for count, tile in TILES.get(columns, ())]
    looks = [
        {"PROGRAMS": programs, "BLOCK": tile, "num_warps": warps} for tile, warps, programs in LOOKS.get(columns, ())
    ]
    return whole + tiles + looks

"""Residual add and RMSNorm: alternatives to its launch table."""

from functools import partial
from typing import Any

from tests.benchmarks import sweeps
from tests.benchmarks.case import Point

Options = dict[str, Any]

COLUMNS = (1024, 2048, 4096, 5120, 8192, 9000, 16384, 32768, 65536)
FP32 = (4096, 16384)
points = partial(sweeps.points, COLUMNS, FP32)


def alternatives(point: Point) -> list[Options]:
    columns = point.shape["columns"]
    return forward(columns) if point.direction == "forward" else backward(columns)


def forward(columns: int) -> list[Options]:
    whole = {  # rows and warps
        1024: ((1, 4), (2, 4), (2, 8), (4, 8), (4, 16)),
        2048: ((1, 4), (1, 8), (2, 8), (4, 16)),
        4096: ((1, 8), (1, 16), (2, 16)),
        5120: ((1, 16), (1, 32)),
        8192: ((1, 16), (1, 32)),
        9000: ((1, 16), (1, 32)),
        16384: ((1, 16), (1, 32)),
        32768: ((1, 32),),
    }.get(columns, ())
    tiles = (8192, 4096) if columns > 16384 else (1024, 2048, 4096, 8192) if columns > 1024 else ()
    block = 1 << (columns - 1).bit_length()
    return [
        *({"ROWS": rows, "BLOCK": block, "num_warps": warps} for rows, warps in whole),
        *({"BLOCK": tile, "num_warps": tile // 256} for tile in tiles),
    ]


def backward(columns: int) -> list[Options]:
    whole = {  # tile, warps, programs, stages
        1024: ((2048, 4, 3, 3), (4096, 8, 2, 3), (2048, 8, 4, 3), (1024, 4, 8, 3), (2048, 4, 4, 2), (8192, 8, 1, 3)),
        2048: ((2048, 4, 4, 3), (4096, 4, 2, 3), (4096, 8, 2, 3), (8192, 8, 1, 3)),
        4096: ((4096, 4, 2, 3), (4096, 8, 2, 3), (8192, 16, 1, 3), (8192, 8, 1, 2), (4096, 8, 2, 4)),
        5120: ((8192, 8, 1, 3), (8192, 16, 1, 3)),
        8192: ((8192, 16, 1, 3), (8192, 16, 1, 2), (8192, 16, 1, 4)),
    }.get(columns, ())
    tiled = {  # tile, warps, programs, kept
        8192: ((4096, 16, 2, False), (4096, 16, 2, True)),
        9000: ((8192, 32, 1, False), (8192, 32, 1, True), (4096, 16, 1, False), (4096, 16, 1, True),
               (2048, 8, 1, False), (2048, 8, 2, False), (2048, 8, 2, True), (1024, 4, 4, True), (2048, 8, 1, True)),
        16384: ((8192, 32, 1, False), (8192, 32, 1, True), (8192, 16, 1, False), (4096, 16, 1, True)),
        32768: ((8192, 32, 1, False), (8192, 16, 1, False), (4096, 16, 1, False), (4096, 32, 1, False)),
    }.get(columns, ())  # fmt: skip
    blocks = {  # of columns, the mean coming from another kernel: tile, warps, programs
        32768: ((8192, 8, 1), (4096, 8, 2)),
        65536: ((8192, 8, 1), (4096, 8, 1), (4096, 8, 2), (2048, 4, 4)),
    }.get(columns, ())
    return sweeps.column_sums(columns, whole, tiled, blocks)

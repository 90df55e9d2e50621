"""RMSNorm: alternatives to its launch table."""

from functools import partial
from typing import Any

from tests.benchmarks import sweeps
from tests.benchmarks.case import Point

Options = dict[str, Any]

COLUMNS = (1024, 2048, 4096, 8192, 9000, 16384, 32768, 65536, 131072)
FP32 = (4096, 16384)
points = partial(sweeps.points, COLUMNS, FP32)


def alternatives(point: Point) -> list[Options]:
    columns = point.shape["columns"]
    return forward(columns) if point.direction == "forward" else backward(columns)


def forward(columns: int) -> list[Options]:
    if columns <= 2048:
        whole = [(1, 4), (2, 8), (4, 8), (8, 8), (8, 16)]
        tiled = [two_looks(1024)] if columns == 2048 else []
        return [{"ROWS": rows, "BLOCK": columns, "num_warps": warps} for rows, warps in whole] + tiled
    if columns <= 32768:
        # whole rows in registers; two looks; one look, the tiles as they came in registers
        warps = {4096: (8, 16), 8192: (16, 32), 9000: (16, 32), 16384: (32,), 32768: (32,)}[columns]
        one_look = [{"ROWS": 1, "BLOCK": 1 << (columns - 1).bit_length(), "num_warps": count} for count in warps]
        kept = {4096: ((2, 2048),), 8192: ((2, 4096),), 9000: ((5, 2048), (3, 4096), (2, 8192)),
                16384: ((4, 4096), (2, 8192)), 32768: ((8, 4096), (4, 8192), (2, 8192))}[columns]  # fmt: skip
        plain = [two_looks(block) for block in (1024, 2048, 4096, 8192)]
        plain += [two_looks(block, num_warps=block // 128) for block in (1024, 2048, 4096)]  # four columns a thread
        plain += [two_looks(block, num_warps=block // 512) for block in (2048, 4096, 8192)]
        return one_look + plain + [two_looks(block, KEPT=tiles) for tiles, block in kept]
    # fewer rows at a time, so that the second look finds them in a cache; stores that leave it alone
    some = (4, 6, 8)
    return [
        two_looks(8192, STORE=".cs"),
        *(two_looks(8192, KEPT=tiles, STORE=".cs") for tiles in some),
        *(two_looks(8192, KEPT=tiles, STORE=".cs", PROGRAMS=1) for tiles in some),
        two_looks(8192, KEPT=8, PROGRAMS=1),
        two_looks(4096, KEPT=16, STORE=".cs"),
        two_looks(4096, KEPT=16, STORE=".cs", PROGRAMS=1),
        two_looks(4096, KEPT=8, STORE=".cs"),
    ]


def two_looks(block: int, **others: Any) -> Options:
    return {"BLOCK": block, "KEPT": 0, "PROGRAMS": 0, "STORE": "", "num_warps": block // 256} | others


def backward(columns: int) -> list[Options]:
    whole = {  # tile, warps, programs
        1024: ((1024, 1, 4), (2048, 4, 4), (2048, 2, 4), (8192, 8, 1)),
        2048: ((2048, 4, 4), (4096, 4, 2), (4096, 8, 2), (8192, 8, 1)),
        4096: ((4096, 4, 2), (4096, 8, 2), (8192, 8, 1), (8192, 16, 1)),
        8192: ((8192, 8, 1), (8192, 16, 1)),
    }.get(columns, ())
    tiled = {  # tile, warps, programs, kept
        9000: ((8192, 32, 1, False), (8192, 32, 1, True), (4096, 16, 1, False), (4096, 16, 1, True),
               (2048, 8, 1, False), (2048, 8, 2, False), (2048, 8, 2, True), (1024, 4, 4, True), (2048, 8, 1, True)),
        16384: ((8192, 32, 1, False), (8192, 32, 1, True), (8192, 16, 1, False), (4096, 16, 1, True)),
        32768: ((8192, 32, 1, False), (8192, 16, 1, False), (4096, 16, 1, False)),
    }.get(columns, ())  # fmt: skip
    blocks = {  # of columns, the mean coming from another kernel: tile, warps, programs
        32768: ((8192, 8, 1),),
        65536: ((8192, 8, 1), (4096, 8, 1), (4096, 8, 2), (2048, 4, 2)),
        131072: ((8192, 8, 1), (4096, 8, 1), (4096, 8, 2), (2048, 4, 2)),
    }.get(columns, ())
    return sweeps.column_sums(columns, [(*plan, 3) for plan in whole], tiled, blocks)

"""Residual add and RMSNorm: alternatives to its launch table."""

from collections.abc import Iterator

from tests.benchmarks.case import Point

COLUMNS = (1024, 2048, 4096, 5120, 8192, 9000, 16384, 32768, 65536)
FP32 = (4096, 16384)


def points() -> Iterator[Point]:
    for columns, dtype in [(n, "bfloat16") for n in COLUMNS] + [(n, "float32") for n in FP32]:
        for direction in ("forward", "backward"):
            yield Point({"rows": max(1024, 2**27 // columns), "columns": columns}, dtype, direction)


def alternatives(point: Point) -> list[dict[str, object]]:
    columns = point.shape["columns"]
    return forward(columns) if point.direction == "forward" else backward(columns)


def forward(columns: int) -> list[dict[str, object]]:
    tried = {  # rows and warps
        1024: ((1, 4), (2, 4), (2, 8), (4, 8), (4, 16)),
        2048: ((1, 4), (1, 8), (2, 8), (4, 16)),
        4096: ((1, 8), (1, 16), (2, 16)),
        5120: ((1, 16), (1, 32)),
        8192: ((1, 16), (1, 32)),
        9000: ((1, 32),),
        16384: ((1, 16), (1, 32)),
        32768: ((1, 32),),
    }.get(columns, ())
    block = 1 << (columns - 1).bit_length()
    whole = [{"ROWS": rows, "BLOCK": block, "num_warps": warps} for rows, warps in tried]
    tiles = {  # kept in registers, and their size
        1024: (),
        2048: ((0, 1024), (2, 1024)),
        4096: ((0, 1024), (0, 2048), (2, 2048), (0, 4096)),
        5120: ((0, 1024), (0, 2048), (5, 1024)),
        8192: ((0, 2048), (0, 4096), (2, 4096), (0, 8192)),
        9000: ((0, 1024), (0, 2048), (0, 4096), (5, 2048), (3, 4096), (2, 8192)),
        16384: ((0, 2048), (0, 4096), (4, 4096), (0, 8192), (2, 8192)),
        32768: ((0, 4096), (0, 8192), (4, 8192), (2, 8192), (8, 4096)),
        65536: ((0, 4096), (0, 8192), (2, 8192), (4, 8192), (6, 8192), (8, 8192), (8, 4096), (16, 4096)),
    }[columns]
    return whole + [{"KEPT": kept, "BLOCK": block, "num_warps": block // 256} for kept, block in tiles]


def backward(columns: int) -> list[dict[str, object]]:
    whole = {  # tile, warps, programs, stages, packed (2: and weight read again)
        1024: ((2048, 4, 3, 3, 0), (4096, 8, 2, 3, 0), (2048, 8, 4, 3, 0), (1024, 4, 8, 3, 0),
               (2048, 4, 4, 2, 0), (8192, 8, 1, 3, 0)),
        2048: ((2048, 4, 4, 3, 0), (4096, 4, 2, 3, 0), (4096, 8, 2, 3, 0), (8192, 8, 1, 3, 0)),
        4096: ((4096, 4, 2, 3, 0), (4096, 8, 2, 3, 0), (8192, 16, 1, 3, 0), (8192, 8, 1, 2, 0),
               (8192, 16, 1, 3, 1), (4096, 8, 2, 4, 1)),
        5120: ((8192, 8, 1, 3, 0), (8192, 16, 1, 3, 0), (8192, 16, 1, 3, 1)),
        8192: ((8192, 16, 1, 3, 0), (8192, 16, 1, 2, 0), (8192, 16, 1, 4, 0), (8192, 16, 1, 3, 1),
               (8192, 16, 1, 4, 1)),
        9000: ((16384, 32, 1, 3, 1), (16384, 32, 1, 2, 2)),
        16384: ((16384, 32, 1, 2, 1), (16384, 32, 1, 3, 1), (16384, 32, 1, 2, 2)),
    }.get(columns, ())  # fmt: skip
    tiled = {  # tile, warps, programs, tiles kept
        8192: ((8192, 32, 1, 0), (8192, 32, 1, 1), (4096, 16, 2, 0), (4096, 16, 2, 2)),
        9000: ((8192, 32, 1, 0), (8192, 32, 1, 2), (4096, 16, 1, 0), (4096, 16, 1, 3), (2048, 8, 2, 5)),
        16384: ((8192, 32, 1, 0), (8192, 32, 1, 1), (8192, 32, 1, 2), (4096, 16, 1, 4)),
        32768: ((8192, 32, 1, 0), (4096, 16, 1, 0), (8192, 16, 1, 0), (2048, 8, 1, 0)),
    }.get(columns, ())
    blocks = {  # of columns, the mean coming from another kernel: tile, warps, programs
        32768: ((8192, 8, 1), (4096, 8, 2)),
        65536: ((8192, 8, 1), (4096, 8, 1), (4096, 8, 2), (2048, 4, 4)),
    }.get(columns, ())
    return [
        *({"PROGRAMS": programs, "ROWS": max(1, tile // columns), "BLOCK": min(tile, 1 << (columns - 1).bit_length()),
           "STAGES": stages, "WHOLE": True, "PACKED": packed > 0, "AGAIN": packed > 1, "num_warps": warps}
          for tile, warps, programs, stages, packed in whole),
        *({"PROGRAMS": programs, "TILES": -(-columns // tile), "BLOCK": tile, "KEPT": kept, "num_warps": warps}
          for tile, warps, programs, kept in tiled),
        *({"PROGRAMS": programs, "ROWS": 1, "BLOCK": tile, "STAGES": 3, "WHOLE": False, "PACKED": False, "AGAIN": False,
           "num_warps": warps} for tile, warps, programs in blocks),
    ]  # fmt: skip

"""LayerNorm: alternatives to its launch table.

A way is (kind, threads, tile, ...): "whole" rows in registers; "tiles" of one row, some of them kept in registers;
"one" look in the backward; "two" looks in the backward.
"""

from collections.abc import Iterator

from tests.benchmarks.case import Point

COLUMNS = (256, 1024, 2048, 4096, 8192, 9000, 16384, 32768, 65536, 131072)
WIDER = (1024, 4096, 16384)  # in fp32, too

# (threads, tile, tiles kept in registers); kept 0: all looked at twice
FORWARD_TILES = {
    2048: ((128, 1024, 0), (256, 2048, 0), (128, 1024, 2), (256, 2048, 1)),
    4096: ((128, 1024, 0), (256, 2048, 0), (512, 4096, 0), (128, 1024, 4), (256, 2048, 2)),
    8192: ((128, 1024, 0), (256, 2048, 0), (512, 4096, 0), (256, 2048, 4), (512, 4096, 2)),
    9000: ((128, 1024, 0), (256, 2048, 0), (512, 4096, 0), (128, 1024, 8), (256, 2048, 4), (512, 4096, 2)),
    16384: ((256, 2048, 0), (512, 4096, 0), (1024, 8192, 0), (512, 4096, 2), (512, 4096, 4), (1024, 8192, 2)),
    32768: (
        (256, 2048, 0),
        (512, 4096, 0),
        (1024, 8192, 0),
        (512, 4096, 4),
        (512, 4096, 8),
        (1024, 8192, 2),
        (1024, 8192, 4),
    ),
    65536: ((512, 4096, 0), (1024, 8192, 0), (512, 4096, 4), (512, 4096, 8), (512, 4096, 10), (1024, 8192, 4)),
    131072: ((512, 4096, 0), (1024, 8192, 0), (512, 4096, 4), (512, 4096, 8), (512, 4096, 10), (1024, 8192, 4)),
}
# (threads, tile): the elements of the whole rows that a program has at one time
FORWARD_WHOLE = {
    256: ((128, 1024), (128, 2048), (128, 4096), (256, 4096)),
    1024: ((128, 1024), (128, 2048), (256, 2048), (128, 4096), (256, 4096)),
    2048: ((128, 2048), (256, 2048), (256, 4096)),
    4096: ((128, 4096), (256, 4096), (512, 4096), (256, 8192)),
    8192: ((512, 8192), (1024, 8192)),
}
# (threads, tile, stages, programs a multiprocessor)
BACKWARD_ONE = {
    256: ((128, 2048, 3, 4), (128, 2048, 4, 4), (128, 1024, 3, 6), (256, 4096, 3, 2)),
    1024: ((128, 2048, 3, 4), (128, 2048, 4, 4), (128, 1024, 3, 8), (256, 4096, 3, 2), (512, 8192, 3, 1)),
    2048: ((128, 2048, 3, 4), (128, 2048, 4, 4), (256, 4096, 3, 2), (512, 8192, 3, 1), (256, 2048, 3, 3)),
    4096: ((256, 4096, 3, 2), (256, 4096, 4, 2), (512, 8192, 3, 1), (512, 8192, 4, 1), (256, 8192, 3, 1),
           (512, 4096, 4, 1)),
    8192: ((512, 8192, 3, 1), (512, 8192, 4, 1), (1024, 8192, 3, 1), (256, 8192, 3, 1)),
    16384: ((512, 8192, 3, 1), (256, 4096, 3, 2)),
    32768: ((512, 8192, 3, 1), (256, 4096, 3, 2), (128, 2048, 3, 4)),
    65536: ((512, 8192, 3, 1), (256, 4096, 3, 2), (128, 2048, 3, 4)),
    131072: ((512, 8192, 3, 1), (512, 8192, 4, 1), (256, 4096, 3, 2), (128, 2048, 3, 4)),
}  # fmt: skip
# (threads, tile, tiles, programs a multiprocessor): fewer tiles than the row has mean programs for parts of the row
BACKWARD_TWO = {
    4096: ((256, 2048, 2, 2), (512, 4096, 1, 1)),
    8192: ((512, 4096, 2, 1), (1024, 8192, 1, 1)),
    9000: ((1024, 8192, 2, 1), (512, 4096, 3, 1), (256, 2048, 5, 1), (128, 1024, 5, 2), (256, 1024, 5, 2)),
    16384: ((1024, 8192, 2, 1), (512, 4096, 4, 1), (1024, 8192, 1, 1), (512, 4096, 2, 1)),
    32768: ((1024, 8192, 2, 1), (512, 4096, 4, 1), (1024, 8192, 1, 1)),
    65536: ((1024, 8192, 2, 1), (512, 4096, 4, 1)),
    131072: ((1024, 8192, 2, 1),),
}


def points() -> Iterator[Point]:
    for columns in COLUMNS:
        for dtype in ("bfloat16", "float32") if columns in WIDER else ("bfloat16",):
            for direction in ("forward", "backward"):
                yield Point({"rows": max(1024, 2**27 // columns), "columns": columns}, dtype, direction)


def alternatives(point: Point) -> list[dict[str, int]]:
    columns, narrow = point.shape["columns"], point.dtype == "bfloat16"
    if point.direction == "forward":
        return (
            [
                {"ROWS": tile // columns, "BLOCK": columns, "num_warps": threads // 32}
                for threads, tile in FORWARD_WHOLE.get(columns, ())
            ]
            + [
                {"KEEP": kept, "BLOCK": tile, "num_warps": threads // 32}
                for threads, tile, kept in FORWARD_TILES.get(columns, ())
                if narrow or kept * tile <= 64 * threads
            ]
            + [
                {"KEEP": kept, "BLOCK": tile, "WELFORD": True, "num_warps": threads // 32}
                for threads, tile, kept in FORWARD_TILES.get(columns, ())[1:5:2]
                if narrow
            ]
        )
    return [
        {
            "PROGRAMS": programs, "ROWS": max(1, tile // columns), "BLOCK": min(tile, columns),
            "FOLD": int(min(tile, columns) >= 8 * threads), "STAGES": stages - (not narrow), "num_warps": threads // 32,
        }
        for threads, tile, stages, programs in BACKWARD_ONE.get(columns, ())
    ] + [
        {"PROGRAMS": programs, "TILES": tiles, "BLOCK": tile, "num_warps": threads // 32}
        for threads, tile, tiles, programs in BACKWARD_TWO.get(columns, ())
    ]  # fmt: skip

"""LayerNorm and GELU: alternatives to its launch table.

In the forward whole rows in registers, with a program for every few rows or with programs that stay, beside two looks
at tiles of one row; in the backward one look at whole rows or at blocks of columns, beside two looks.
"""

from collections.abc import Iterator

from tests.benchmarks.case import Point

COLUMNS = (256, 1024, 2048, 4096, 8192, 9000, 16384, 32768, 65536, 131072)
WIDER = (1024, 4096, 16384)  # in fp32, too

# (threads, elements at one time, stages, programs a multiprocessor; 0: one for every few rows)
FORWARD_WHOLE = {
    256: ((128, 2048, 1, 0), (128, 4096, 1, 0), (128, 2048, 3, 4), (128, 4096, 3, 4), (256, 8192, 2, 2)),
    1024: ((128, 2048, 1, 0), (128, 4096, 1, 0), (128, 2048, 3, 6), (128, 4096, 3, 4), (128, 4096, 2, 4),
           (256, 8192, 2, 2)),
    2048: ((128, 2048, 1, 0), (128, 4096, 1, 0), (256, 2048, 1, 0), (128, 4096, 3, 4), (128, 4096, 2, 4),
           (256, 8192, 2, 2)),
    4096: ((128, 4096, 1, 0), (256, 4096, 1, 0), (256, 8192, 1, 0), (128, 4096, 3, 4), (256, 8192, 3, 2),
           (256, 4096, 3, 3), (256, 8192, 2, 2)),
    8192: ((256, 8192, 1, 0), (512, 8192, 1, 0), (256, 8192, 3, 2), (512, 8192, 3, 2), (512, 16384, 2, 1)),
    9000: ((512, 16384, 1, 0), (512, 16384, 2, 1), (1024, 16384, 1, 0)),
    16384: ((512, 16384, 1, 0), (1024, 16384, 1, 0), (512, 16384, 3, 1), (512, 16384, 2, 1)),
    32768: ((1024, 32768, 1, 0), (1024, 32768, 2, 1)),
}  # fmt: skip
# (threads, tile, tiles kept in registers); kept 0: all looked at twice
FORWARD_TILES = {
    2048: ((128, 1024, 2), (256, 2048, 1)),
    4096: ((128, 1024, 0), (128, 1024, 4), (256, 2048, 2)),
    8192: ((256, 2048, 0), (256, 2048, 4), (128, 1024, 8)),
    9000: ((128, 1024, 0), (256, 2048, 4), (128, 1024, 8)),
    16384: ((256, 2048, 0), (512, 4096, 0), (512, 4096, 4), (256, 2048, 8), (128, 1024, 16)),
    32768: ((512, 4096, 0), (1024, 8192, 0), (512, 4096, 8), (1024, 8192, 4), (256, 2048, 16)),
    65536: ((512, 4096, 0), (1024, 8192, 0), (1024, 8192, 4), (512, 4096, 8), (512, 4096, 16), (1024, 8192, 8)),
    131072: ((512, 4096, 0), (1024, 8192, 0), (1024, 8192, 4), (512, 4096, 16), (1024, 8192, 8)),
}
# (threads, elements at one time, stages, programs a multiprocessor)
BACKWARD_ONE = {
    256: ((128, 2048, 3, 4), (128, 1024, 3, 6), (256, 4096, 3, 2), (128, 4096, 3, 2)),
    1024: ((128, 2048, 3, 4), (128, 2048, 2, 4), (128, 1024, 3, 8), (256, 4096, 3, 2), (512, 8192, 3, 1),
           (128, 4096, 3, 2)),
    2048: ((128, 2048, 3, 4), (256, 4096, 3, 2), (512, 8192, 3, 1), (256, 2048, 3, 3), (128, 4096, 3, 2)),
    4096: ((256, 4096, 3, 1), (512, 8192, 3, 1), (512, 8192, 4, 1), (256, 8192, 3, 1), (512, 4096, 4, 1),
           (1024, 8192, 3, 1)),
    8192: ((512, 8192, 3, 1), (512, 8192, 4, 1), (1024, 8192, 3, 1), (256, 8192, 3, 1)),
    9000: ((512, 8192, 3, 1), (128, 2048, 3, 4)),
    16384: ((512, 8192, 3, 1), (256, 8192, 3, 1), (256, 4096, 3, 2), (128, 2048, 3, 4)),
    32768: ((512, 8192, 3, 1), (256, 8192, 3, 1), (256, 4096, 3, 2), (128, 2048, 3, 4), (128, 4096, 3, 2)),
    65536: ((512, 8192, 3, 1), (256, 4096, 3, 2), (128, 2048, 3, 4)),
    131072: ((512, 8192, 3, 1), (256, 8192, 3, 1), (256, 4096, 3, 2), (128, 2048, 3, 4)),
}  # fmt: skip
# (threads, tile)
BACKWARD_TWO = {
    4096: ((256, 2048), (512, 4096)),
    8192: ((512, 4096), (1024, 8192), (256, 2048)),
    9000: ((512, 4096), (256, 2048), (256, 1024)),
    16384: ((512, 4096), (1024, 8192), (256, 2048)),
}


def points() -> Iterator[Point]:
    for columns in COLUMNS:
        for dtype in ("bfloat16", "float32") if columns in WIDER else ("bfloat16",):
            for direction in ("forward", "backward"):
                yield Point({"rows": max(1024, 2**27 // columns), "columns": columns}, dtype, direction)


def alternatives(point: Point) -> list[dict[str, int]]:
    """Of which the first, on a power of two in 16 bits, is there with erf, too."""
    tried = _tried(point)
    exact = point.dtype == "bfloat16" and "ROWS" in tried[0] and point.shape["columns"] in (1024, 4096)
    return tried + ([tried[0] | {"ERF": True}] if exact else [])


def _tried(point: Point) -> list[dict[str, int]]:
    columns, narrow = point.shape["columns"], point.dtype == "bfloat16"
    whole = 1 << (columns - 1).bit_length()
    if point.direction == "forward":
        return [
            {
                "PROGRAMS": programs, "ROWS": tile // whole, "BLOCK": whole,
                "STAGES": stages if narrow else min(stages, 2), "num_warps": threads // 32,
            }
            for threads, tile, stages, programs in FORWARD_WHOLE.get(columns, ())
        ] + [
            {"KEEP": kept, "BLOCK": tile, "num_warps": threads // 32}
            for threads, tile, kept in FORWARD_TILES.get(columns, ())
            if narrow or kept * tile <= 64 * threads
        ]  # fmt: skip
    return [
        {
            "PROGRAMS": programs, "ROWS": max(1, tile // whole), "BLOCK": min(tile, whole),
            "FOLD": int(min(tile, whole) >= 8 * threads), "STAGES": stages - (not narrow), "num_warps": threads // 32,
        }
        for threads, tile, stages, programs in BACKWARD_ONE.get(columns, ())
    ] + [
        {"PROGRAMS": 1, "TILES": -(-columns // tile), "BLOCK": tile, "num_warps": threads // 32}
        for threads, tile in BACKWARD_TWO.get(columns, ())
    ]  # fmt: skip

"""LayerNorm and GELU: alternatives to its launch table.

In the forward whole rows in registers, in tiles, beside two looks at tiles of one row; in the backward one look at
whole rows or at blocks of columns.
"""

from functools import partial

from tests.benchmarks import sweeps
from tests.benchmarks.case import Point

COLUMNS = (256, 1024, 2048, 4096, 8192, 9000, 16384, 32768, 65536, 131072)
WIDER = (256, 1024, 2048, 4096, 16384)  # in fp32, too

# (threads, tile, rows)
FORWARD_WHOLE = {
    256: ((32, 256, 1), (32, 256, 2), (32, 256, 4), (64, 256, 4), (128, 256, 8), (128, 256, 16)),
    1024: ((32, 256, 1), (32, 256, 2), (32, 1024, 1), (64, 512, 1), (64, 512, 2), (128, 1024, 2), (128, 1024, 4)),
    2048: ((32, 256, 1), (64, 512, 1), (64, 512, 2), (128, 1024, 1), (128, 1024, 2), (128, 1024, 4)),
    4096: ((32, 256, 1), (64, 512, 1), (128, 1024, 1), (128, 1024, 2), (128, 2048, 1), (256, 2048, 1), (256, 2048, 2),
           (256, 2048, 4)),
    8192: ((64, 512, 1), (128, 1024, 1), (256, 2048, 1), (256, 2048, 2), (512, 4096, 1), (512, 4096, 2)),
    9000: ((64, 512, 1), (128, 1024, 1), (256, 2048, 1), (512, 4096, 1), (256, 1024, 1)),
    16384: ((128, 1024, 1), (256, 2048, 1), (512, 4096, 1), (512, 4096, 2), (1024, 8192, 1)),
    32768: ((256, 2048, 1), (512, 4096, 1), (1024, 8192, 1)),
    65536: ((1024, 8192, 1), (512, 4096, 1)),
}  # fmt: skip
# (threads, tile)
FORWARD_TWO = {
    4096: ((256, 2048), (128, 1024)),
    8192: ((256, 2048), (128, 1024)),
    9000: ((256, 2048), (128, 1024)),
    16384: ((256, 2048), (512, 4096)),
    32768: ((256, 2048), (512, 4096), (1024, 8192)),
    65536: ((256, 2048), (512, 4096), (1024, 8192), (256, 4096), (512, 8192)),
    131072: ((256, 2048), (512, 4096), (1024, 8192), (256, 4096), (512, 8192)),
}
# (threads, elements at one time, stages, programs a multiprocessor)
BACKWARD_ONE = {
    256: ((128, 2048, 3, 4), (128, 2048, 3, 3), (256, 4096, 3, 2), (128, 4096, 3, 2), (128, 1024, 3, 8)),
    1024: ((128, 2048, 3, 4), (128, 4096, 3, 3), (128, 4096, 3, 2), (256, 4096, 3, 2), (64, 1024, 3, 8),
           (64, 2048, 3, 4)),
    2048: ((128, 2048, 3, 4), (128, 2048, 3, 3), (256, 4096, 3, 2), (128, 4096, 3, 2), (128, 4096, 3, 3),
           (256, 8192, 3, 1), (512, 8192, 3, 1)),
    4096: ((512, 8192, 3, 1), (512, 8192, 4, 1), (256, 8192, 3, 1), (256, 4096, 3, 2), (512, 16384, 3, 1)),
    8192: ((512, 8192, 3, 1), (1024, 8192, 3, 1), (512, 16384, 3, 1)),
    9000: ((128, 2048, 3, 4), (128, 1024, 3, 4), (64, 1024, 3, 8), (64, 1024, 3, 6), (128, 1024, 3, 6)),
    16384: ((512, 8192, 3, 1), (256, 8192, 3, 1), (128, 2048, 3, 4), (128, 2048, 4, 4), (256, 4096, 3, 2)),
    32768: ((512, 8192, 3, 1), (256, 8192, 3, 1), (256, 4096, 3, 2), (128, 2048, 3, 4), (128, 2048, 4, 4)),
    65536: ((512, 8192, 3, 1), (256, 4096, 3, 2), (128, 2048, 3, 4)),
    131072: ((512, 8192, 3, 1), (256, 8192, 3, 1), (256, 4096, 3, 2), (128, 2048, 3, 4)),
}  # fmt: skip
points = partial(sweeps.points, COLUMNS, WIDER)


def alternatives(point: Point) -> list[dict[str, int]]:
    """In 16 bits, two ways of the forward are there with erf, too."""
    columns, narrow = point.shape["columns"], point.dtype == "bfloat16"
    whole = 1 << (columns - 1).bit_length()
    if point.direction == "forward":
        tiles = [
            {"ROWS": rows, "TILES": -(-columns // tile), "BLOCK": tile, "num_warps": threads // 32}
            for threads, tile, rows in FORWARD_WHOLE.get(columns, ())
        ]
        with_erf = [tiles[-1] | {"ERF": True}, tiles[1] | {"ERF": True}] if narrow and columns in (1024, 4096) else []
        return tiles + with_erf + [
            {"BLOCK": tile, "num_warps": threads // 32} for threads, tile in FORWARD_TWO.get(columns, ())
        ]  # fmt: skip
    return [
        {
            "PROGRAMS": programs, "ROWS": max(1, tile // whole), "BLOCK": min(tile, whole),
            "FOLD": int(min(tile, whole) >= 8 * threads), "STAGES": stages - (not narrow), "num_warps": threads // 32,
        }
        for threads, tile, stages, programs in BACKWARD_ONE.get(columns, ())
    ]  # fmt: skip

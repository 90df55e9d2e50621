"""LayerNorm: alternatives to its launch table."""

from functools import partial

from tests.benchmarks import sweeps
from tests.benchmarks.case import Point
from tests.benchmarks.sweeps import MULTIPROCESSORS, fetched_parts, held

Options = dict[str, int | str]

COLUMNS = (256, 1024, 2048, 4096, 8192, 9000, 12288, 16384, 20480, 32768, 65536, 131072)
WIDER = (1024, 4096, 16384, 32768)  # in fp32, too

# A row in registers: threads, columns of a tile, packed, and for how many programs a multiprocessor the next rows are
# fetched meanwhile
FORWARD_ROW = {
    2048: ((128, 2048, 0, 8), (128, 2048, 0, 0), (128, 1024, 0, 8), (256, 2048, 0, 4)),
    4096: ((256, 2048, 0, 4), (256, 2048, 0, 0), (128, 4096, 0, 8), (128, 1024, 0, 8), (128, 1024, 1, 8)),
    8192: ((256, 2048, 0, 4), (256, 2048, 0, 0), (512, 4096, 0, 2), (256, 2048, 1, 4), (128, 1024, 0, 0)),
    9000: ((256, 2048, 0, 0), (256, 2048, 0, 3), (256, 2048, 1, 0), (256, 2048, 1, 4), (512, 4096, 1, 2)),
    12288: ((512, 4096, 0, 2), (512, 4096, 0, 0), (256, 2048, 0, 3), (256, 2048, 0, 0), (256, 2048, 1, 3)),
    16384: ((512, 4096, 0, 2), (512, 4096, 0, 0), (512, 4096, 1, 2), (512, 4096, 1, 0), (512, 8192, 0, 2),
            (256, 2048, 1, 4)),
    20480: ((512, 4096, 0, 1), (512, 4096, 0, 0), (512, 4096, 1, 2), (512, 4096, 1, 0), (1024, 8192, 0, 1)),
    32768: ((512, 4096, 1, 1), (512, 4096, 1, 0), (512, 4096, 1, 2), (1024, 8192, 1, 1), (1024, 8192, 1, 0),
            (1024, 8192, 1, 2), (1024, 8192, 0, 1), (1024, 8192, 0, 0)),
}  # fmt: skip
# A part of a row: columns, threads, and for how many columns the next ones are fetched
FORWARD_PARTS = ((16384, 256, 2**21), (16384, 256, 2**20), (16384, 256, 2**22), (16384, 256, 0), (8192, 128, 2**21),
                 (8192, 256, 2**21), (32768, 512, 2**21))  # fmt: skip
# (threads, tile): a row that is looked at twice
FORWARD_WIDE = {
    4096: ((128, 1024),),
    8192: ((256, 2048),),
    16384: ((512, 4096), (256, 2048)),
    32768: ((1024, 8192), (512, 4096)),
    65536: ((1024, 8192), (512, 4096)),
    131072: ((1024, 8192), (512, 4096)),
}
# (threads, tile): the elements of the whole rows that a program has at one time
FORWARD_WHOLE = {
    256: ((128, 2048), (128, 4096), (128, 1024)),
    1024: ((128, 2048), (128, 1024)),
    2048: ((128, 2048), (256, 4096)),
    4096: ((128, 4096), (256, 8192)),
    8192: ((256, 8192), (512, 16384)),
}
# (threads, tile, stages, programs a multiprocessor)
BACKWARD_ONE = {
    256: ((128, 2048, 3, 4), (128, 1024, 3, 8)),
    1024: ((128, 2048, 3, 4), (128, 1024, 3, 8), (128, 4096, 3, 3), (256, 8192, 3, 1)),
    2048: ((128, 2048, 3, 4), (128, 4096, 3, 2), (256, 8192, 3, 1), (128, 2048, 3, 5)),
    4096: ((256, 4096, 3, 2), (256, 8192, 3, 1), (128, 4096, 3, 2), (512, 4096, 3, 1), (512, 8192, 3, 1)),
    8192: ((512, 8192, 3, 1), (512, 8192, 4, 1), (256, 8192, 3, 1), (256, 8192, 4, 1)),
    32768: ((512, 8192, 3, 1), (256, 8192, 3, 1), (128, 4096, 3, 2)),
    20480: ((512, 8192, 3, 1), (256, 8192, 3, 1)),
    65536: ((512, 8192, 3, 1), (256, 8192, 3, 1)),
    131072: ((512, 8192, 3, 1), (256, 8192, 3, 1), (128, 4096, 3, 2)),
}
# (threads, tile, tiles)
BACKWARD_TWO = {
    9000: ((1024, 8192, 2), (512, 4096, 3), (256, 2048, 5)),
    12288: ((1024, 8192, 2), (512, 4096, 3), (256, 2048, 6)),
    16384: ((1024, 8192, 2), (512, 4096, 4)),
}
points = partial(sweeps.points, COLUMNS, WIDER)


def alternatives(point: Point) -> list[Options]:
    columns, narrow = point.shape["columns"], point.dtype == "bfloat16"
    bits = 16 if narrow else 32
    if point.direction == "forward":
        whole: list[Options] = [
            {"ROWS": tile // columns, "BLOCK": columns, "num_warps": threads // 32}
            for threads, tile in FORWARD_WHOLE.get(columns, ())
        ]
        rows = [
            held(
                1, -(-columns // tile), tile, threads,
                PACKED=bool(packed), AHEAD=MULTIPROCESSORS * ahead * 16 // bits,
            )
            for threads, tile, packed, ahead in FORWARD_ROW.get(columns, ())
            if narrow or not packed
        ]  # fmt: skip
        if columns >= 32768:
            rows += [fetched_parts(columns, bits, *plan) for plan in FORWARD_PARTS]
        wide: list[Options] = [
            {"BLOCK": tile, "num_warps": threads // 32} for threads, tile in FORWARD_WIDE.get(columns, ())
        ]
        return whole + rows + wide
    one: list[Options] = [
        {
            "PROGRAMS": programs, "ROWS": max(1, tile // columns), "TILES": 1, "BLOCK": min(tile, columns),
            "FOLD": int(min(tile, columns) >= 8 * threads), "STAGES": stages - (not narrow), "num_warps": threads // 32,
        }
        for threads, tile, stages, programs in BACKWARD_ONE.get(columns, ())
    ]  # fmt: skip
    two: list[Options] = [
        {"PROGRAMS": 1, "TILES": tiles, "BLOCK": tile, "num_warps": threads // 32} | hints
        for threads, tile, tiles in BACKWARD_TWO.get(columns, ())
        for hints in ({"W1": "evict_last", "W2": ""}, {"W1": "", "W2": ""})
    ]
    return one + two

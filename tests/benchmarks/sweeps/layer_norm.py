"""LayerNorm: alternatives to its launch table."""

from collections.abc import Iterator

from tests.benchmarks.case import Point

Options = dict[str, int | str]

COLUMNS = (256, 1024, 2048, 4096, 8192, 9000, 12288, 16384, 32768, 65536, 131072)
WIDER = (1024, 4096, 16384)  # in fp32, too

# (threads, tile, tiles kept in registers); kept 0: all looked at twice
FORWARD_TILES = {
    2048: ((128, 1024, 2), (128, 1024, 0), (256, 2048, 1)),
    4096: ((128, 1024, 4), (256, 2048, 2), (128, 1024, 0)),
    8192: ((128, 1024, 8), (256, 2048, 4), (512, 4096, 2), (256, 2048, 0), (128, 1024, 0)),
    9000: ((128, 1024, 8), (256, 2048, 4), (512, 4096, 2), (256, 2048, 0), (128, 1024, 0)),
    12288: ((256, 2048, 6), (128, 1024, 12), (512, 4096, 3)),
    16384: ((256, 2048, 8), (512, 4096, 4), (1024, 8192, 2), (256, 2048, 0), (512, 4096, 0)),
    32768: ((512, 4096, 8), (1024, 8192, 4), (512, 4096, 4), (512, 4096, 0), (256, 2048, 0), (256, 2048, 16)),
    65536: ((1024, 8192, 8), (1024, 8192, 6), (1024, 8192, 4), (512, 4096, 8), (512, 4096, 0), (1024, 8192, 0)),
    131072: ((1024, 8192, 6), (1024, 8192, 4), (1024, 8192, 0), (512, 4096, 8), (512, 4096, 0)),
}
HINTS = ({"CG": "", "CS": ""}, {"CG": ".cg", "CS": ".cs"}, {"CG": ".cg", "CS": ""}, {"CG": "", "CS": ".cs"})
# (threads, tile): the elements of the whole rows that a program has at one time
FORWARD_WHOLE = {
    256: ((128, 2048), (128, 4096), (128, 1024)),
    1024: ((128, 2048), (128, 1024)),
    2048: ((128, 2048), (256, 4096)),
    4096: ((128, 4096), (256, 8192)),
    8192: ((128, 8192), (256, 8192)),
    16384: ((256, 16384), (512, 16384)),
}
# (threads, tile, stages, programs a multiprocessor)
BACKWARD_ONE = {
    256: ((128, 2048, 3, 4), (128, 1024, 3, 8)),
    1024: ((128, 2048, 3, 4), (128, 1024, 3, 8), (128, 4096, 3, 3), (256, 8192, 3, 1)),
    2048: ((128, 2048, 3, 4), (128, 4096, 3, 2), (256, 8192, 3, 1), (128, 2048, 3, 5)),
    4096: ((256, 4096, 3, 2), (256, 8192, 3, 1), (128, 4096, 3, 2), (512, 4096, 3, 1), (512, 8192, 3, 1)),
    8192: ((512, 8192, 3, 1), (512, 8192, 4, 1), (256, 8192, 3, 1), (256, 8192, 4, 1)),
    32768: ((512, 8192, 3, 1), (256, 8192, 3, 1), (128, 4096, 3, 2)),
    65536: ((512, 8192, 3, 1), (256, 8192, 3, 1)),
    131072: ((512, 8192, 3, 1), (256, 8192, 3, 1), (128, 4096, 3, 2)),
}
# (threads, tile, tiles)
BACKWARD_TWO = {
    9000: ((1024, 8192, 2), (512, 4096, 3), (256, 2048, 5)),
    12288: ((1024, 8192, 2), (512, 4096, 3), (256, 2048, 6)),
    16384: ((1024, 8192, 2), (512, 4096, 4)),
}


def points() -> Iterator[Point]:
    for columns in COLUMNS:
        for dtype in ("bfloat16", "float32") if columns in WIDER else ("bfloat16",):
            for direction in ("forward", "backward"):
                yield Point({"rows": max(1024, 2**27 // columns), "columns": columns}, dtype, direction)


def alternatives(point: Point) -> list[Options]:
    columns, narrow = point.shape["columns"], point.dtype == "bfloat16"
    if point.direction == "forward":
        whole: list[Options] = [
            {"ROWS": tile // columns, "BLOCK": columns, "num_warps": threads // 32}
            for threads, tile in FORWARD_WHOLE.get(columns, ())
        ]
        tiles: list[Options] = []
        for index, (threads, tile, kept) in enumerate(FORWARD_TILES.get(columns, ())):
            if not narrow and kept * tile > 64 * threads:
                continue
            for hints in HINTS if index < 2 and narrow else HINTS[:2]:
                tiles.append({"KEEP": kept, "BLOCK": tile, "num_warps": threads // 32, **hints})
        return whole + tiles
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

"""Cross-entropy: alternatives to its launch table."""

from collections.abc import Iterator

from tests.benchmarks.case import Point

COLUMNS = (1000, 4096, 8192, 16384, 32000, 50257, 65536, 128256, 262144)


def points() -> Iterator[Point]:
    """Steps for the forward, which computes the gradient too; backwards that compute it all; two wrong guesses."""
    for columns in COLUMNS:
        shape = {"rows": max(1056, 2**28 // columns), "columns": columns}
        yield Point(shape, "bfloat16", "forward", part="step")
        if columns in (1000, 4096, 32000):
            yield Point(shape, "bfloat16", "backward")
    for columns in (4096, 32000):
        yield Point({"rows": max(1056, 2**26 // columns), "columns": columns}, "float32", "forward", part="step")
    for columns in (1000, 32000):
        yield Point({"rows": 2**27 // columns, "columns": columns}, "bfloat16", "backward", part="two losses")
    yield Point({"rows": 4096, "columns": 32000}, "bfloat16", "forward")  # no gradient


def short(rows: int, block: int, threads: int, stages: int, programs: int) -> dict[str, int]:
    return {"ROWS": rows, "BLOCK": block, "STAGES": stages, "PROGRAMS": programs, "num_warps": threads // 32}


def wide(point: Point, threads: int, pieces: int, keep: int, stages: int, registers: int, programs: int) -> dict:
    """A thread has `pieces` of 16 bytes of a tile, and at most so many registers."""
    block = threads * pieces * (8 if point.dtype == "bfloat16" else 4)
    options = {"BLOCK": block, "KEEP": keep, "STAGES": stages, "PROGRAMS": programs, "num_warps": threads // 32}
    if point.direction == "backward":
        del options["KEEP"]
    return options | ({"maxnreg": registers} if registers else {})


def alternatives(point: Point) -> list[dict[str, int]]:
    columns = point.shape["columns"]
    if point.direction == "forward":
        rows = {
            1000: [
                short(*o)
                for o in ((2, 1024, 128, 1, 0), (1, 1024, 128, 1, 0), (2, 1024, 128, 1, 10), (2, 1024, 128, 3, 8),
                          (1, 1024, 32, 1, 0), (1, 1024, 64, 1, 16), (4, 1024, 256, 1, 6), (1, 1024, 64, 3, 16))
            ],
            4096: [
                short(*o)
                for o in ((1, 4096, 128, 1, 0), (1, 4096, 128, 1, 8), (1, 4096, 128, 3, 8), (1, 4096, 256, 1, 5),
                          (1, 4096, 256, 1, 0), (1, 4096, 256, 3, 4))
            ],
            8192: [short(*o) for o in ((1, 8192, 256, 1, 0), (1, 8192, 256, 1, 4), (1, 8192, 256, 3, 3))],
            16384: [short(*o) for o in ((1, 16384, 512, 1, 0), (1, 16384, 512, 1, 2), (1, 16384, 512, 2, 2))],
            32000: [short(*o) for o in ((1, 32768, 1024, 1, 0), (1, 32768, 1024, 1, 1))],
        }.get(columns, [])  # fmt: skip
        tiles: tuple[tuple[int, ...], ...] = ((256, 1, 0, 0, 32, 0), (256, 1, 0, 0, 40, 6))
        if columns > 8192:
            tiles += ((512, 1, 0, 0, 32, 0), (512, 1, 0, 0, 32, 4), (512, 1, 0, 0, 40, 0), (512, 1, 0, 0, 40, 3),
                      (512, 1, 0, 3, 32, 0), (512, 1, 0, 3, 40, 3), (512, 1, 0, 1, 32, 4))  # fmt: skip
        if columns > 16384:
            tiles += ((512, 2, 0, 0, 64, 2), (1024, 2, 0, 0, 64, 1))
        if columns > 50257:
            tiles += ((1024, 1, 4, 0, 64, 1), (1024, 1, 3, 0, 64, 1), (512, 2, 4, 0, 128, 1), (512, 1, 0, 0, 40, 2))
        return rows + ([] if columns <= 1024 else [wide(point, *o) for o in tiles])
    if columns <= 1024:
        return [{"ROWS": r, "BLOCK": 1024, "PROGRAMS": p, "num_warps": 4} for r in (1, 2) for p in (4, 8, 16)]
    return [
        wide(point, *o)
        for o in ((512, 1, 0, 1, 32, 4), (256, 1, 0, 1, 32, 8), (128, 1, 0, 1, 32, 16), (256, 1, 0, 0, 40, 6),
                  (512, 1, 0, 0, 32, 4), (512, 1, 0, 3, 32, 4), (128, 1, 0, 0, 40, 12))
    ]  # fmt: skip

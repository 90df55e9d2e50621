"""RMSNorm: alternatives to its launch table."""

from collections.abc import Iterator

from tests.benchmarks.case import Point

COLUMNS = (1024, 2048, 4096, 8192, 9000, 16384, 32768, 65536, 131072)
FP32 = (4096, 16384)


def points() -> Iterator[Point]:
    for columns, dtype in [(n, "bfloat16") for n in COLUMNS] + [(n, "float32") for n in FP32]:
        for direction in ("forward", "backward"):
            yield Point({"rows": max(1024, 2**27 // columns), "columns": columns}, dtype, direction)


def alternatives(point: Point) -> list[dict[str, object]]:
    columns = point.shape["columns"]
    return forward(columns) if point.direction == "forward" else backward(columns)


def forward(columns: int) -> list[dict[str, object]]:
    if columns <= 2048:
        whole = [(1, 4), (2, 8), (4, 8), (8, 8), (8, 16)]
        tiled = [two_looks(1024)] if columns == 2048 else []
        return [{"ROWS": rows, "BLOCK": columns, "num_warps": warps} for rows, warps in whole] + tiled
    if columns <= 32768:
        whole = [{"ROWS": 1, "BLOCK": columns, "num_warps": columns // 512}] if columns in (4096, 8192) else []
        return whole + [two_looks(block) for block in (1024, 2048, 4096, 8192)]
    # fewer rows at a time, so that the second look finds them in L2; stores that leave it alone; tiles in registers
    one = {"PROGRAMS": 1}
    return [
        two_looks(8192, STORE=".cs"),
        two_looks(8192, **one),
        two_looks(8192, STORE=".cs", **one),
        two_looks(8192, KEPT=3, **one),
        two_looks(8192, KEPT=4, STORE=".cs", **one),
        two_looks(4096, KEPT=10, **one),
        two_looks(4096, KEPT=10),
    ]


def two_looks(block: int, **others: object) -> dict[str, object]:
    return {"BLOCK": block, "KEPT": 0, "PROGRAMS": 0, "STORE": "", "num_warps": block // 256} | others


def backward(columns: int) -> list[dict[str, object]]:
    if columns <= 8192:
        tried = {
            1024: ((1024, 1, 4), (2048, 4, 4), (2048, 2, 4), (4096, 8, 2), (8192, 8, 1)),
            2048: ((2048, 4, 4), (4096, 4, 2), (4096, 8, 2), (8192, 8, 1)),
            4096: ((4096, 4, 2), (4096, 8, 2), (8192, 8, 1), (8192, 16, 1)),
            8192: ((8192, 8, 1), (8192, 16, 1)),
        }[columns]
        return [
            {"PROGRAMS": programs, "ROWS": tile // columns, "BLOCK": columns, "STAGES": 3, "WHOLE": True} | warps(count)
            for tile, count, programs in tried
        ]
    if columns <= 32768:
        tried = {
            9000: ((8192, 16, 1), (4096, 16, 1), (2048, 8, 1), (2048, 8, 2)),
            16384: ((8192, 16, 1), (4096, 16, 1)),
            32768: ((8192, 16, 1), (4096, 16, 1)),
        }[columns]
        tiled = [
            {"PROGRAMS": programs, "TILES": -(-columns // block), "BLOCK": block} | warps(count)
            for block, count, programs in tried
        ]
        whole = {"PROGRAMS": 1, "ROWS": 1, "BLOCK": 16384, "STAGES": 2, "WHOLE": True} | warps(16)
        return [*tiled, whole] if columns <= 16384 else tiled
    return [
        {"PROGRAMS": programs, "ROWS": 1, "BLOCK": block, "STAGES": 3, "WHOLE": False} | warps(count)
        for block, count, programs in ((4096, 8, 1), (4096, 8, 2), (2048, 4, 2))
    ]


def warps(count: int) -> dict[str, int]:
    return {"num_warps": count}

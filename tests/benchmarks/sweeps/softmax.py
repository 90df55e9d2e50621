"""Softmax: alternatives to its launch table."""

from collections.abc import Iterator

from tests.benchmarks.case import Point

COLUMNS = (1024, 2048, 4096, 8192, 9000, 16384, 32768, 65536, 131072)
Options = dict[str, int | str]


def points() -> Iterator[Point]:
    for direction in ("forward", "backward"):
        for columns in COLUMNS:
            yield Point({"rows": max(1024, 2**27 // columns), "columns": columns}, "bfloat16", direction)
        for columns in (4096, 32768):
            yield Point({"rows": 2**26 // columns, "columns": columns}, "float32", direction)


def alternatives(point: Point) -> list[Options]:
    columns, bits = point.shape["columns"], 32 if point.dtype == "float32" else 16
    forward = point.direction == "forward"
    if columns == 1024:
        sizes = ((1, 2), (1, 4), (2, 4), (2, 8), (4, 4), (4, 8))
        return [{"ROWS": rows, "BLOCK": 1024, "num_warps": warps} for rows, warps in sizes]
    if columns <= 16384:
        block = 1 << (columns - 1).bit_length()
        whole = [{"ROWS": 1, "BLOCK": block, "num_warps": block // each // 32} for each in (8, 16, 32)]
        sizes = [size for size in (1024, 2048, 4096, 8192) if size < columns]
        return [row for row in whole if row["num_warps"] in (4, 8, 16, 32)] + [looks(size, bits) for size in sizes]
    tiles = [looks(size, bits) for size in (2048, 4096, 8192)]
    if columns == 32768:
        whole = [{"ROWS": 1, "BLOCK": columns, "num_warps": 32}] if forward else []
        return [*tiles, *whole, keeping(4, 1, bits), keeping(2, 2 if forward else 1, bits)]
    if forward:
        return [
            *tiles[1:],
            keeping(8, 4, bits),
            keeping(8, 2, bits, STORE=".cs"),
            keeping(8, 2, bits, PROGRAMS=132),
            keeping(6, 2, bits),
            keeping(5, 2, bits, PROGRAMS=132, AHEAD=1),
            keeping(12, 2, bits, PROGRAMS=132, AHEAD=1, BLOCK=4096),
            keeping(16, 2, bits, BLOCK=4096),
            keeping(0, 4, bits, PROGRAMS=132),
        ]
    return [
        *tiles[1:],
        keeping(4, 2, bits),
        keeping(4, 2, bits, STORE=".cs"),
        keeping(4, 1, bits, PROGRAMS=132, AHEAD=1),
        keeping(4, 2, bits, PROGRAMS=99),
        keeping(4, 2, bits, PROGRAMS=66),
        keeping(6, 2, bits, PROGRAMS=132, AHEAD=1, BLOCK=4096),
        keeping(8, 1, bits, BLOCK=4096),
        keeping(0, 2, bits, PROGRAMS=132),
    ]


def looks(block: int, bits: int) -> Options:
    return {"BLOCK": block, "LANES": block * bits // 128, "num_warps": block // 256}


def keeping(keep: int, batch: int, bits: int, **others: int | str) -> Options:
    """As the table says it, for bf16: fp32 keeps half as many tiles."""
    options = {"KEEP": keep * 16 // bits, "BATCH": batch, "BLOCK": 8192, "PROGRAMS": 1 << 30, "AHEAD": 0, "STORE": ""}
    options |= others
    block = options["BLOCK"]
    return options | {"LANES": block * bits // 128, "num_warps": block // 256}

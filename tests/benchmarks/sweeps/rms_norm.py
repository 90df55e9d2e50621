"""RMSNorm: alternatives to its launch table."""

from collections.abc import Iterator

from tests.benchmarks.case import Point

COLUMNS = (1024, 2048, 4096, 8192, 9000, 16384, 32768, 131072)


def points() -> Iterator[Point]:
    for columns in COLUMNS:
        for direction in ("forward", "backward"):
            yield Point({"rows": max(1024, 2**27 // columns), "columns": columns}, "bfloat16", direction)


def alternatives(point: Point) -> list[dict[str, int]]:
    columns = point.shape["columns"]
    if point.direction == "forward":
        whole = [
            {"ROWS": rows, "BLOCK": columns, "num_warps": warps} for rows, warps in ((1, 4), (2, 4)) if columns <= 4096
        ]
        return whole + [{"BLOCK": block, "num_warps": block // 256} for block in (1024, 2048, 4096, 8192)]
    return []

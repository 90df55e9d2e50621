"""Matmuls in fp8: alternatives to the launch table."""

from collections.abc import Iterator
from typing import Any

from tests.benchmarks.case import Point

Options = dict[str, Any]
TILES = {  # rows, columns, stages, parts, warps, programs a multiprocessor, one loop over tiles and terms
    (128, 256): ((4, 4, 8, 1, True), (4, 4, 8, 1, False), (4, 4, 8, 0, False), (3, 2, 8, 1, True), (3, 1, 8, 1, True)),
    (256, 128): ((4, 2, 8, 1, True),),
    (128, 128): ((6, 1, 8, 1, True), (3, 1, 4, 2, True)),
}


def points() -> Iterator[Point]:
    """Of scales by rows: what other products launch is chosen from the same few."""
    for columns, inner in ((8192, 8192), (14336, 4096)):
        yield Point({"rows": 8192, "columns": columns, "inner": inner}, "float8_e4m3fn", "forward", part="rows")
    yield Point({"rows": 8192, "columns": 14336, "inner": 4096}, "bfloat16", "backward", part="rows layer")


def alternatives(point: Point) -> list[Options]:
    return [
        {"BLOCK_K": 128, "GROUP": group, "PARTS": parts, "BLOCK_M": rows, "BLOCK_N": columns, "PROGRAMS": programs,
         "FLATTEN": flatten, "num_stages": stages, "num_warps": warps}
        for (rows, columns), plans in TILES.items()
        for stages, parts, warps, programs, flatten in plans
        for group in ((16, 8) if stages == 4 and rows == 128 else (16,))
    ]  # fmt: skip

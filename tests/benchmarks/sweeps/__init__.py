"""Alternatives to the kernels' launch tables, and what a table says."""

import importlib
from collections.abc import Collection, Iterable, Iterator

import torch

import kernels  # noqa: F401  so that its modules are found later, when MkDocs has put sys.path back
from tests.benchmarks import stand_ins
from tests.benchmarks.case import Point

# A model of all sizes chooses their launches, and no row of a table: their cases hold what it chooses against cuBLAS.
BY_A_MODEL = {"matmul"}
SWEPT = "sm_90"  # an H200
MULTIPROCESSORS = stand_ins.MULTIPROCESSORS[SWEPT]


def chosen(kernel: str, direction: str, row_length: int, bits: int) -> dict:
    """The options that a kernel's launch table takes on an H200, for a row length and the bits of a dtype."""
    module = importlib.import_module(f"kernels.{kernel}")
    with stand_ins.on(module, SWEPT):
        return dict(getattr(module, f"_{direction}_launch")(row_length, bits, torch.device("cuda")))


def points(
    columns: Iterable[int], fp32: Collection[int], directions: Iterable[str] = ("forward", "backward")
) -> Iterator[Point]:
    """Rows of so many columns, in bf16 and some in fp32, as many as make up 256 MiB of bf16."""
    for dtype, lengths in (("bfloat16", columns), ("float32", fp32)):
        for length in lengths:
            for direction in directions:
                yield Point({"rows": max(1024, 2**27 // length), "columns": length}, dtype, direction)


def held(parts: int, tiles: int, tile: int, threads: int, **more: int) -> dict:
    """A row in registers: cut into parts, a part into tiles of so many columns, by so many threads."""
    return {"PARTS": parts, "TILES": tiles, "BLOCK": tile, "SLOTS": threads, "num_warps": threads // 32} | more


def fetched_parts(columns: int, bits: int, size: int, threads: int, ahead: int) -> dict:
    """Rows cut into parts of so many columns, half as many in fp32, with so many columns fetched ahead."""
    size = size * 16 // bits
    tiles, rows = size // (8 * threads), ahead * 16 // (bits * columns)
    return held(-(-columns // size), tiles, 8 * threads, threads, PACKED=bits == 16, AHEAD=rows)


def column_sums(columns: int, whole: Iterable[tuple], tiled: Iterable[tuple], blocks: Iterable[tuple]) -> list[dict]:
    """A backward with column sums: whole rows (tile, warps, programs, stages), rows in tiles (kept), or blocks."""
    return [
        *({"PROGRAMS": programs, "ROWS": max(1, tile // columns), "BLOCK": min(tile, 1 << (columns - 1).bit_length()),
           "STAGES": stages, "WHOLE": True, "num_warps": warps}
          for tile, warps, programs, stages in whole),
        *({"PROGRAMS": programs, "TILES": -(-columns // tile), "BLOCK": tile, "KEPT": kept, "num_warps": warps}
          for tile, warps, programs, kept in tiled),
        *({"PROGRAMS": programs, "ROWS": 1, "BLOCK": tile, "STAGES": 3, "WHOLE": False, "num_warps": warps}
          for tile, warps, programs in blocks),
    ]  # fmt: skip

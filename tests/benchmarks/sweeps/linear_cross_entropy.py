"""Linear cross-entropy: alternatives to its launch table, for the kernel between the matmuls."""

from collections.abc import Iterator

from tests.benchmarks.case import Point


def points() -> Iterator[Point]:
    """Steps, whose matmuls have few columns and take little; and losses whose backward computes logits again."""
    for vocabulary, dtype in ((1000, "bfloat16"), (32000, "bfloat16"), (128256, "bfloat16"), (32000, "float32")):
        yield Point({"tokens": 4096, "hidden": 64, "vocabulary": vocabulary}, dtype, "forward", part="step")
    yield Point({"tokens": 4096, "hidden": 64, "vocabulary": 32000}, "bfloat16", "backward", part="losses")


def alternatives(point: Point) -> list[dict[str, int]]:
    vocabulary, bits = point.shape["vocabulary"], 16 if point.dtype == "bfloat16" else 32
    tried = [(1024, 128, 0), (2048, 128, 0), (2048, 256, 0), (4096, 256, 0), (4096, 512, 32)]
    if vocabulary > 1024:
        tried += [(8192, 512, 0), (8192, 1024, 32), (16384, 1024, 64)]
    return [
        {"BLOCK": block * 16 // bits if block > 1024 else block, "num_warps": threads // 32}
        | ({"maxnreg": registers} if registers else {})
        for block, threads, registers in tried
    ]

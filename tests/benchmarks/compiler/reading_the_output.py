"""Bounds that docs/pages/compiler/reading-the-output.md names; it has no case."""

from tests.benchmarks.bounds import bound, captured


@bound("MB", rows=65536, columns=4096, width=2)
def copied(rows: float, columns: float, width: float) -> float:
    """The bytes of the input that is put back before each try."""
    return rows * columns * width


@bound(
    "GB/s",
    rows=65536,
    columns=4096,
    width=2,
    time=captured(
        "tried", "triton_poi_fused_mul_silu_silu_backward_3", "*", which=4, of="compiler/reading_the_output_launched"
    ),
)
def copied_by_second(rows: float, columns: float, width: float, time: float) -> float:
    """The rate at which the input is put back, if that takes the whole time of the try."""
    return rows * columns * width / time

"""Bounds that docs/pages/compiler/reading-the-output.md names; it has no case."""

from tests.benchmarks.bounds import bound, captured

TENSOR = {"rows": 65536, "columns": 4096, "width": 2}
copied = bound("MB", "rows * columns * width", TENSOR)  # The bytes of the input that is put back before each try.
# The rate at which the input is put back, if that takes the whole time of the try.
copied_by_second = bound(
    "GB/s",
    "rows * columns * width / time",
    TENSOR,
    time=captured(
        "tried", "triton_poi_fused_mul_silu_silu_backward_3", "*", which=4, of="compiler/reading_the_output_launched"
    ),
)

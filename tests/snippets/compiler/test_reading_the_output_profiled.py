"""A trace gives the kernels in their order."""

import pytest

from snippets.compiler.reading_the_output_profiled import Ran, kernels_of


def kernel_event(name: str, start: float, duration: float, grid: list[int], block: list[int]) -> dict:
    args = {"grid": grid, "block": block, "registers per thread": 32, "stream": 7}
    return {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": duration, "args": args}


def test_a_trace_gives_kernels_in_the_order_in_which_they_began():
    events = [
        kernel_event("second", 20.0, 5.0, [64, 2, 1], [128, 1, 1]),
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1.0, "dur": 2.0, "args": {}},
        kernel_event("first", 10.0, 3.0, [7, 1, 1], [32, 1, 1]),
        {"ph": "s", "name": "ac2g"},
    ]
    assert kernels_of({"traceEvents": events}) == [
        Ran("first", (7, 1, 1), (32, 1, 1), 32, pytest.approx(3e-6)),
        Ran("second", (64, 2, 1), (128, 1, 1), 32, pytest.approx(5e-6)),
    ]

"""Exposed time is read from a trace as by hand."""

import pytest

from snippets.examples import multi_gpu_trace


def test_exposed_time_is_what_no_other_kernel_covers() -> None:
    kernels = [("nccl a", 0, 10), ("gemm", 4, 2), ("nccl b", 8, 6), ("copy", 12, 5), ("gemm", 13, 1), ("nccl", 20, 1)]
    events = [{"cat": "kernel", "name": name, "ts": ts, "dur": dur} for name, ts, dur in kernels]
    events.append({"cat": "cpu_op", "name": "nccl", "ts": 0, "dur": 1000})
    # NCCL from 0 to 14 and from 20 to 21; other kernels from 4 to 6 and 12 to 17; microseconds
    found = multi_gpu_trace.parts(events)
    assert found == pytest.approx({"matmuls": 0.003, "other": 0.004, "exposed": 0.011, "idle": 0.003})

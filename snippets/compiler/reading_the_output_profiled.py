"""The kernels of a call as the GPU ran them, read from the trace of torch.profiler."""

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity


# --8<-- [start:profiled]
@dataclass(frozen=True)
class Ran:
    """A kernel as the GPU ran it: programs and threads of a program along x, y and z, and registers of a thread."""

    name: str
    grid: tuple[int, ...]
    threads: tuple[int, ...]
    registers: int
    seconds: float


def profiled(call: Callable[[], object]) -> list[Ran]:
    """The kernels of a call, in the order in which they began."""
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return kernels_of(json.loads(path.read_text()))


def kernels_of(trace: Mapping[str, Any]) -> list[Ran]:
    """The kernels of a Chrome trace, as torch.profiler writes it."""
    events = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    return [
        Ran(
            event["name"],
            tuple(event["args"]["grid"]),
            tuple(event["args"]["block"]),
            event["args"]["registers per thread"],
            event["dur"] * 1e-6,
        )
        for event in sorted(events, key=lambda event: event["ts"])
    ]


# --8<-- [end:profiled]

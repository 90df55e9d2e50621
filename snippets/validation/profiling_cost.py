"""What the profiler costs: the time of a step, the time until its trace is written, and the size of the trace."""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from snippets.validation.profiling_training import ON_GPU, Training


# --8<-- [start:cost]
def cost(step: Callable[[], object], steps: int = 20, **options: bool) -> tuple[float, float, float]:
    """Milliseconds of a step while it is profiled, seconds until its trace is on disk, and the trace's size in MB."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * ON_GPU
        plan = schedule(wait=0, warmup=3, active=steps, repeat=1)
        with profile(activities=activities, schedule=plan, acc_events=True, **options) as profiler:
            for _ in range(3):
                step()
                wait()
                profiler.step()
            spent = seconds(step, steps - 1, after_each=profiler.step)
            step()
            wait()
            start = time.perf_counter()
            profiler.step()  # the last one: what was recorded is collected
        profiler.export_chrome_trace(str(path))
        return spent / (steps - 1) * 1e3, time.perf_counter() - start, path.stat().st_size / 1e6


def seconds(step: Callable[[], object], steps: int, after_each: Callable[[], object] = lambda: None) -> float:
    """Of all steps together, by the clock."""
    wait()
    start = time.perf_counter()
    for _ in range(steps):
        step()
        after_each()
    wait()
    return time.perf_counter() - start


def wait() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


# --8<-- [end:cost]

OPTIONS: dict[str, dict[str, bool]] = {
    "profiler": {},
    "record_shapes": {"record_shapes": True},
    "profile_memory": {"profile_memory": True},
    "with_stack": {"with_stack": True},
}


def costs(step: Training, steps: int) -> Iterator[str]:
    """A line for each option: the better of two tries, since the host does other things, too."""
    step()
    alone = min(seconds(step, steps) for _ in range(3)) / steps * 1e3
    yield f"{'':16}{'a step':>13}{'of alone':>11}{'until written':>16}{'trace of a step':>18}"
    yield f"{'no profiler':16}{alone:10.3f} ms"
    for name, options in OPTIONS.items():
        each, written, size = min(cost(step, steps, **options) for _ in range(2))
        yield f"{name:16}{each:10.3f} ms{each / alone:9.2f} x{written:14.2f} s{size / steps:15.3f} MB"

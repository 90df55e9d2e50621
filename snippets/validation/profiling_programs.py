"""One training step in five forms, each recorded and read; what the profiler costs; and what its table says.

Run `python -m snippets.validation.profiling_programs` to see it for the machine at hand.
"""

import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from snippets.validation.profiling import Step, read, reading, record, steps_of, table
from snippets.validation.profiling_cost import costs
from snippets.validation.profiling_timeline import timeline
from snippets.validation.profiling_training import DEVICE, ON_GPU, SMALL, Training, programs
from snippets.validation.timing import measure


# --8<-- [start:full]
def many_launches() -> None:
    """More launches than the GPU's queue has room for, each of a kernel that takes longer than its launch."""
    x = torch.zeros(2**26, device=DEVICE)
    for _ in range(1500):
        x += 1


def launch_lengths(step: Step) -> Iterator[str]:
    """How long the calls that launch took, by their place in the step."""
    calls = [call.length for call, _ in step.launches()]
    for first, last in ((0, 500), (500, 1000), (1000, len(calls))):
        yield f"launches {first + 1:4} to {last:4}: median {statistics.median(calls[first:last]):6.1f} us"


# --8<-- [end:full]


def recorded(step: Callable[[], object], by: str, which: int = 1) -> tuple[Step, list[str]]:
    """One of three recorded steps, and the largest rows of the profiler's table of all three."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler = record(step, path)
        return steps_of(read(path))[which], list(table(profiler, by))


# --8<-- [start:first]
def lengths(step: Callable[[], object], warm_up: int) -> list[float]:
    """How long the first recorded steps take, in milliseconds, as the trace has it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        record(step, path, steps=4, warm_up=warm_up)
        return [found.length / 1e3 for found in steps_of(read(path))]


# --8<-- [end:first]


# --8<-- [start:inside]
def names_inside(wrapped: Callable[[Callable], Callable]) -> list[str]:
    """The names given inside a function that are in the trace after it was wrapped."""

    def function(x: Tensor) -> Tensor:
        with record_function("first half"):
            y = x.sin()
        with record_function("second half"):
            return y.cos()

    x, call = torch.ones(8), wrapped(function)
    call(x)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        call(x)
    return sorted(row.key for row in profiler.key_averages() if row.key.endswith("half"))


# --8<-- [end:inside]


def main() -> None:
    """Record and read each form, then what the profiler costs."""
    if not ON_GPU:
        torch.set_num_threads(1)  # the layers are too small to share out
    first = Training(*SMALL)
    for _ in range(5):
        first()
    rows = [(f"{warm_up} steps of warm-up", lengths(first, warm_up)) for warm_up in (0, 3)]
    print("==== first steps")
    for label, found in rows:
        print(f"{label:22}" + "".join(f"{length:10.3f} ms" for length in found))
    steps = programs()
    tables = {}
    for name, step in steps.items():
        for _ in range(5):
            step()  # compiles, records CUDA graphs, chooses algorithms
        by = "self_device_time_total" if ON_GPU and name == "eager" else "self_cpu_time_total"
        one, tables[name] = recorded(step, by)
        print(f"==== {name}", *reading(one), sep="\n")
        print(f"==== {name}, timeline\n{timeline(one)}")
    for name in ("eager", "waiting"):
        if name in tables:
            print(f"==== {name}, table", *tables[name], sep="\n")
    if ON_GPU:
        one, rows_of_table = recorded(many_launches, "self_cpu_time_total", which=0)  # begins with an empty queue
        print("==== full", *launch_lengths(one), "", *rows_of_table[:4], sep="\n")
    print("==== clock")
    found = measure(dict(steps), DEVICE, "calls", rounds=7 if ON_GPU else 1, patience=3.0)
    for name, timing in found.items():
        print(f"{name:10}{timing.p50 * 1e3:10.3f} ms")
    for name in ("eager", "ahead"):
        if name in steps:
            print(f"==== {name}, costs", *costs(steps[name], 50 if ON_GPU else 3), sep="\n")
    print("==== inside")
    print(f"eager:    {', '.join(names_inside(lambda function: function))}")
    in_graph = names_inside(lambda function: torch.compile(function, backend="aot_eager"))
    print(f"compiled: {', '.join(in_graph) or 'none'}")
    if not ON_GPU:
        print("==== without a GPU\nno launches, no CUDA graphs, no waits: the traces have operations only")


if __name__ == "__main__":
    main()

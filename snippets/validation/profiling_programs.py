"""One training step in five forms, each recorded and read; what the profiler costs; and what its table says.

Run `python -m snippets.validation.profiling_programs` to see it for the machine at hand.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from snippets.validation.profiling import Step, read, reading, record, steps_of, table, timeline
from snippets.validation.timing import measure

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = DEVICE.type == "cuda"


# --8<-- [start:training]
class Training:
    """A step of three layers: forward, backward, perhaps a look at the loss, optimizer."""

    def __init__(self, width: int, rows: int, compiled: Callable = lambda function: function, look: bool = False):
        dtype = torch.bfloat16 if ON_GPU else torch.float32
        layers = [nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)]
        self.model = nn.Sequential(*layers).to(DEVICE, dtype)
        self.x = torch.randn(rows, width, device=DEVICE, dtype=dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        self.loss = compiled(self.loss_of)
        self.look, self.seen = look, 0.0

    def loss_of(self, x: Tensor) -> Tensor:
        return self.model(x).float().square().mean()

    def __call__(self) -> None:
        with record_function("forward"):
            loss = self.loss(self.x)
        with record_function("backward"):
            loss.backward()
        if self.look:
            with record_function("log"):
                self.seen = loss.item()  # the host waits here until the GPU is done
        with record_function("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad()


# --8<-- [end:training]


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


def compiled(function: Callable) -> Callable:
    """Without a GPU the regions are there all the same, and nothing has to be built."""
    return torch.compile(function) if ON_GPU else torch.compile(function, backend="aot_eager")


def replayed(function: Callable) -> Callable:
    return torch.compile(function, mode="reduce-overhead")


SMALL, LARGE = ((1024, 512), (2048, 16384)) if ON_GPU else ((64, 16), (256, 256))  # width, rows


def programs() -> dict[str, Training]:
    """The five forms; without a GPU those that differ there."""
    found = {"eager": Training(*SMALL), "compiled": Training(*SMALL, compiled)}
    if ON_GPU:
        found["graph"] = Training(*SMALL, replayed)
        found["ahead"] = Training(*LARGE)
        found["waiting"] = Training(*LARGE, look=True)
    return found


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

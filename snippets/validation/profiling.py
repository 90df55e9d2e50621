"""How to read a trace of torch.profiler, and what profiling costs.

Run `python -m snippets.validation.profiling`; `... profiling trace.json` reads a trace of your own.
"""

import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from snippets.validation.diagnosis import LAUNCHES, ON_GPU, Event, read, record, seconds, union, without

Step = Callable[[], object]
LAYERS = 3


# --8<-- [start:program]
def layers(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """x (tokens, width) through some layers. A label costs little, and names a stretch of the trace."""
    for number, weight in enumerate(weights):
        with record_function(f"layer {number}"):
            x = x + F.silu(F.layer_norm(x, x.shape[-1:])) @ weight
    return x


# --8<-- [end:program]


def inputs(tokens: int, width: int, device: torch.device) -> tuple[Tensor, list[Tensor]]:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    x = torch.randn(tokens, width, device=device, dtype=dtype)
    return x, [torch.randn(width, width, device=device, dtype=dtype) / width for _ in range(LAYERS)]


def programs(device: torch.device) -> dict[str, Step]:
    """The same layers: small in three ways, and large."""
    on_gpu = device.type == "cuda"
    small, large = inputs(256, 512, device), inputs(16384 if on_gpu else 1024, 4096 if on_gpu else 512, device)
    ways: dict[str, Step] = {
        "eager": partial(layers, *small),
        "compiled": partial(torch.compile(layers), *small),
        "graph": partial(torch.compile(layers, mode="reduce-overhead"), *small),
        "large": partial(layers, *large),
    }
    return {name: in_inference(step) for name, step in ways.items()}


def in_inference(step: Step) -> Step:
    def called() -> object:
        with torch.no_grad():
            return step()

    return called


# ---- reading ----------------------------------------------------------------------------------------------


# --8<-- [start:reading]
@dataclass(frozen=True)
class Reading:
    """What a reader looks for in a trace.

    Attributes:
        step: seconds of the step, from the first operation to the end of the last kernel.
        kernels, launches: kernels that ran, and calls of the host that launched them.
        busy: share of the step in which a kernel or a copy runs.
        lead: median seconds from a launch to the start of its kernel: how far ahead the host is.
        gap: the longest time in which the GPU does nothing, in seconds.
        during: what the host was doing in the middle of that.
    """

    step: float
    kernels: int
    launches: int
    busy: float
    lead: float
    gap: float
    during: str


def reading(events: Sequence[Event]) -> Reading:
    """Read one step.

    Raises:
        ValueError: no kernel is among the events.
    """
    kernels = [event for event in events if event.category in ON_GPU]
    if not kernels:
        raise ValueError("no kernel in this trace: it was made without a GPU, or without ProfilerActivity.CUDA")
    host = [event for event in events if event.category not in ON_GPU]
    launched = {event.args.get("correlation"): event for event in host if LAUNCHES.match(event.name)}
    leads, used = [], set()
    for kernel in sorted(kernels, key=lambda event: event.start):
        launch = kernel.args.get("correlation")
        if launch in launched and launch not in used:  # a graph launches many kernels: the first one counts
            used.add(launch)
            leads.append(kernel.start - launched[launch].start)
    begin, end = min(event.start for event in events), max(event.end for event in kernels)
    busy = union(event.span for event in kernels)
    gaps = without([(busy[0][0], end)], busy)
    first, last = max(gaps, key=lambda gap: gap[1] - gap[0], default=(end, end))
    middle = (first + last) / 2
    inside = [event for event in host if event.start <= middle < event.end and last > first]
    during = max(inside, key=lambda event: event.start).name if inside else "nothing that is recorded"
    return Reading(
        step=end - begin,
        kernels=len(kernels),
        launches=len(launched),
        busy=seconds(busy) / (end - begin),
        lead=statistics.median(leads) if leads else float("nan"),
        gap=last - first,
        during=during,
    )


# --8<-- [end:reading]


def one_step(events: Sequence[Event]) -> list[Event]:
    """The events of the last step that the profiler marked, without the mark; all if none is marked.

    A kernel belongs to the step that launched it, even if it runs later.
    """
    marks = [event for event in events if event.name.startswith("ProfilerStep#") and event.category not in ON_GPU]
    events = [event for event in events if not event.name.startswith("ProfilerStep#")]
    if not marks:
        return events
    mark = max(marks, key=lambda event: event.start)
    host = [event for event in events if event.category not in ON_GPU and mark.start <= event.start < mark.end]
    launched = {event.args["correlation"] for event in host if "correlation" in event.args}
    return host + [event for event in events if event.category in ON_GPU and event.args.get("correlation") in launched]


def step_of(call: Step) -> list[Event]:
    """One step of a program, recorded after some that warm up: the first ones compile, and record a graph."""
    for _ in range(3):
        call()
    with tempfile.TemporaryDirectory() as folder:
        return one_step(read(record(call, Path(folder) / "trace.json", steps=3)))


# ---- drawing ----------------------------------------------------------------------------------------------

KINDS = (  # of a bar: the first that matches
    ("launch", LAUNCHES),
    ("compiled", re.compile(r"Torch-Compiled|CompiledFunction|## Call|triton_|TorchDynamo")),
    ("wait", re.compile(r"(cuda|hip)\w*Synchronize")),
    ("host", re.compile(r"")),
)


# --8<-- [start:timeline]
def timeline(events: Sequence[Event]) -> dict:
    """A step as the site draws it: lanes of bars [start, length, name, kind], and arrows; in microseconds."""
    begin = min(event.start for event in events)

    def bar(event: Event, kind: str) -> list:
        return [
            round((event.start - begin) * 1e6, 1),
            round((event.end - event.start) * 1e6, 1),
            short(event.name),
            kind,
        ]

    host = sorted((event for event in events if event.category not in ON_GPU), key=lambda e: (e.start, -e.end))
    depths: list[list[Event]] = [[], [], []]  # labels and operations, what these call, and the launches below
    for event in host:
        if LAUNCHES.match(event.name):
            depths[2].append(event)
            continue
        for depth in depths[:2]:
            if not depth or event.start >= depth[-1].end:
                depth.append(event)
                break
    kernels = sorted((event for event in events if event.category in ON_GPU), key=lambda event: event.start)
    names = "labels and operations", "what they call", "launches", "GPU"
    bars = [[bar(event, kind_of(event)) for event in depth] for depth in depths]
    bars.append([bar(event, "compiled" if event.name.startswith("triton_") else "kernel") for event in kernels])
    launched = {event.args.get("correlation"): event for event in depths[2]}
    arrows = [
        [round((launched[kernel.args["correlation"]].start - begin) * 1e6, 1), round((kernel.start - begin) * 1e6, 1)]
        for kernel in kernels
        if kernel.args.get("correlation") in launched
    ]
    lanes = [{"name": name, "bars": lane} for name, lane in zip(names, bars, strict=True) if lane]
    return {"lanes": lanes, "arrows": arrows}


# --8<-- [end:timeline]


def kind_of(event: Event) -> str:
    return next(kind for kind, pattern in KINDS if pattern.match(event.name))


def short(name: str, most: int = 40) -> str:
    """A name without namespace, template and arguments."""
    name = re.sub(r"^(void |aten::)", "", name)
    name = re.sub(r"[<(].*", "", name).rpartition("::")[2] if "<" in name or "(" in name else name
    return name if len(name) <= most else name[: most - 1] + "…"


# ---- costs ------------------------------------------------------------------------------------------------


# --8<-- [start:costs]
@dataclass(frozen=True)
class Cost:
    """Of profiling some steps: seconds a step while it records, seconds to stop and to write, bytes of the file."""

    step: float
    stop: float
    write: float
    nbytes: int


def per_step(call: Step, steps: int, after: Callable[[], object] = lambda: None) -> float:
    synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        call()
        after()
    synchronize()
    return (time.perf_counter() - begin) / steps


def cost(call: Step, steps: int, **options: object) -> Cost:
    """What it costs to profile so many steps under some options."""
    profiler = profile(**options)
    profiler.start()
    step = per_step(call, steps)
    begin = time.perf_counter()
    profiler.stop()
    stopped = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return Cost(step, stopped - begin, time.perf_counter() - stopped, path.stat().st_size)


# --8<-- [end:costs]


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def costs(call: Step, steps: int = 50) -> Iterator[str]:
    """A table of costs, the plain step first."""
    host, gpu = [ProfilerActivity.CPU], [ProfilerActivity.CUDA] * torch.cuda.is_available()
    for _ in range(10):
        call()
    yield f"{'':<34}{'us a step':>11}{'ms to stop':>12}{'ms to write':>13}{'MB':>8}"
    yield f"{'no profiler':<34}{per_step(call, steps) * 1e6:>11.0f}"
    waiting = profile(activities=host + gpu, schedule=schedule(wait=1000, warmup=1, active=1), acc_events=True)
    waiting.start()
    yield f"{'a profiler whose schedule waits':<34}{per_step(call, steps, waiting.step) * 1e6:>11.0f}"
    waiting.stop()
    both = {"activities": host + gpu}
    rows: dict[str, dict] = {"GPU only": {"activities": gpu}} if gpu else {}
    rows |= {
        "host and GPU": both,
        "and record_shapes": {**both, "record_shapes": True},
        "and profile_memory": {**both, "profile_memory": True},
        "and with_stack": {**both, "with_stack": True},
        "all of these": {**both, "record_shapes": True, "profile_memory": True, "with_stack": True},
    }
    for name, options in rows.items():
        found = cost(call, steps, **options)
        times = f"{found.step * 1e6:>11.0f}{found.stop * 1e3:>12.1f}{found.write * 1e3:>13.1f}"
        yield f"{name:<34}{times}{found.nbytes / 1e6:>8.2f}"


def first_profiler(call: Step) -> str:
    """What starting and stopping costs once in each process: CUPTI, which watches the GPU, is loaded and set up."""
    call()
    synchronize()
    begin = time.perf_counter()
    with profile(acc_events=True):
        call()
        synchronize()
    return f"the first profiler of the process, around one step: {(time.perf_counter() - begin) * 1e3:.0f} ms"


def line(name: str, found: Reading) -> str:
    return (
        f"{name:<10}{found.step * 1e6:>9.0f}{found.kernels:>9}{found.launches:>10}{found.busy * 100:>7.0f}"
        f"{found.lead * 1e6:>9.1f}{found.gap * 1e6:>9.1f}   {short(found.during)}"
    )


HEAD = f"{'':<10}{'us':>9}{'kernels':>9}{'launches':>10}{'busy %':>7}{'lead us':>9}{'gap us':>9}   during the gap"


def main(arguments: list[str]) -> int:
    """Read a trace, or profile the programs of the page; returns the exit status."""
    if arguments:
        try:
            events = one_step(read(arguments[0]))
            print(HEAD)
            print(line("one step", reading(events)))
        except (OSError, ValueError) as error:
            print(f"profiling: {error}", file=sys.stderr)
            return 2
        return 0
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    ways = programs(device)
    if device.type == "cpu":
        ways = {"eager": ways["eager"]}
    first = first_profiler(ways["eager"])
    found = {name: step_of(call) for name, call in ways.items()}
    if device.type == "cuda":
        print("==== readings")
        print(HEAD)
        for name, events in found.items():
            print(line(name, reading(events)))
    else:
        print("no GPU: there are no kernels to read, and the timeline is the host's alone")
    for name, events in found.items():
        print(f"==== timeline {name}")
        print(json.dumps(timeline(events)))
    print("==== costs")
    print("\n".join(costs(ways["eager"])))
    print(first)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

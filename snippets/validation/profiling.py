"""Record a step with torch.profiler, and read one step of its trace: launches, kernels, and what lies between them.

    python profiling.py trace.json [--step 1]

or, around a step of your own:

    record(step, "trace.json")
    print("\\n".join(reading(steps_of(read("trace.json"))[1])))

One file to copy. Reading a trace needs the standard library only, and no GPU; `record` needs torch.
"""

import argparse
import gzip
import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# ---- recording ----------------------------------------------------------------------------------------------------


# --8<-- [start:record]
def record(step: Callable[[], object], path: str | Path, steps: int = 3, warm_up: int = 2, **options: bool) -> Any:
    """Profile some calls of a step after some that only warm up, and write the trace.

    Args:
        options: what else to record: record_shapes, with_stack, profile_memory.

    Returns:
        The profiler, for its table.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    on_gpu = torch.cuda.is_available()
    with profile(
        activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu,
        schedule=schedule(wait=0, warmup=warm_up, active=steps, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
        acc_events=True,  # else the events are gone after the last step
        **options,
    ) as profiler:
        for number in range(warm_up + steps):
            step()
            if on_gpu and number in (warm_up - 1, warm_up + steps - 1):
                torch.cuda.synchronize()  # the first recorded step finds an idle GPU, and the last kernels are recorded
            profiler.step()  # tells the schedule that a step is over
    return profiler


# --8<-- [end:record]


# --8<-- [start:table]
def table(profiler: Any, by: str = "self_cpu_time_total", rows: int = 10) -> Iterator[str]:
    """What key_averages().table(sort_by=by) tells most, in milliseconds: four of its columns for the largest rows."""
    found = list(profiler.key_averages())
    on_gpu = any(row.self_device_time_total for row in found)
    columns = ["self_cpu_time_total", "cpu_time_total"] + ["self_device_time_total", "device_time_total"] * on_gpu
    heads = ["Self CPU", "CPU total"] + ["Self CUDA", "CUDA total"] * on_gpu
    yield f"{'name':50}{'calls':>6}" + "".join(f"{head:>13}" for head in heads)
    for row in sorted(found, key=lambda row: -getattr(row, by))[:rows]:
        times = "".join(f"{getattr(row, column) / 1e3:10.3f} ms" for column in columns)
        yield f"{readable(row.key, keep=True)[:49]:50}{row.count:6}{times}"


# --8<-- [end:table]


# ---- the trace ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """What took a while, on the host or on the GPU; times in microseconds."""

    name: str
    category: str
    start: float
    length: float
    thread: object = 0
    args: dict = field(default_factory=dict)

    @property
    def end(self) -> float:
        return self.start + self.length


ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
WAIT = re.compile(r"(cuda|cu|hip)\w*Synchronize")


def read(path: str | Path) -> list[Event]:
    """The events of a trace as export_chrome_trace writes it, packed with gzip or not.

    Raises:
        ValueError: the file is no such trace.
    """
    raw = Path(path).read_bytes()
    try:
        found = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)["traceEvents"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: expected a trace as export_chrome_trace writes it, with traceEvents") from error
    wanted = (*ON_GPU, *CALLS, "cpu_op", "user_annotation")
    return [
        Event(event["name"], event["cat"], event["ts"], event["dur"], event.get("tid", 0), event.get("args", {}))
        for event in found
        if event.get("ph") == "X" and event.get("cat") in wanted
    ]


# --8<-- [start:readable]
DOES = re.compile(r"\w*[Ff]unctor\w*|\w+Ops\b|\w+_kernel_cuda|\w+_kernel_impl|\w+KernelImpl|cutlass_\w+")
WRAPPERS = ("func_wrapper_t", "gpu_kernel_impl", "BinaryFunctor", "AUnaryFunctor", "BUnaryFunctor", "ReduceOp")
NOISE = re.compile(r"^CUDAFunctor(OnSelf)?_|(CUDA)?KernelImpl$|_kernel_(cuda|impl)$|_?[Ff]unctor$|Ops$")


def readable(name: str, keep: bool = False) -> str:
    """A kernel's or an operation's name without templates and namespaces: what it does, and in which kernel.

    Args:
        keep: leave "aten::" in front of operations, to tell them from kernels.
    """
    name = re.sub(r"^(autograd::engine::evaluate_function: )?(torch::autograd::)?(void )?", "", name)
    if not re.search(r"[<(]|at::native", name) or re.match(r"Mem(cpy|set)", name):
        return name if keep else name.removeprefix("aten::")
    name = re.sub(r"(\(anonymous namespace\)|<unnamed>)::", "", name)  # as the profiler writes it, and as ncu does
    kernel = re.split(r"[<(]", name)[0].rpartition("::")[2]
    does = [found for found in DOES.findall(name[len(kernel) :]) if found not in (*WRAPPERS, kernel)]
    return f"{NOISE.sub('', does[0])} ({kernel})" if does else kernel


# --8<-- [end:readable]


@dataclass(frozen=True)
class Step:
    """One step of a trace, from its first moment to the end of the last kernel that it launched.

    Attributes:
        name: as the profiler numbers it.
        host: how long the host needed, in microseconds; times of events count from the step's beginning.
        length: until the last kernel ended.
        named: what record_function named.
        operations: the outermost: what they call lies below them.
        calls: of CUDA.
        kernels: and copies.
    """

    name: str
    host: float
    length: float
    named: list[Event]
    operations: list[Event]
    calls: list[Event]
    kernels: list[Event]

    def launches(self) -> list[tuple[Event, list[Event]]]:
        """Each call that started something on the GPU, with the kernels that have its number."""
        started: dict[object, list[Event]] = {}
        for kernel in self.kernels:
            started.setdefault(kernel.args.get("correlation"), []).append(kernel)
        pairs = [(call, started.get(call.args.get("correlation"), [])) for call in self.calls]
        return [(call, kernels) for call, kernels in pairs if kernels]


def steps_of(events: Sequence[Event]) -> list[Step]:
    """The steps that the profiler was told of; the whole trace as one if it was not.

    Raises:
        ValueError: there are no events.
    """
    if not events:
        raise ValueError("the trace is empty: was anything called while the profiler recorded?")
    numbered = [event for event in events if event.name.startswith("ProfilerStep#")]
    if not numbered:
        start = min(event.start for event in events)
        numbered = [Event("the whole trace", "", start, max(event.end for event in events) - start)]
    others = [event for event in events if not event.name.startswith("ProfilerStep#")]
    return [step_of(number, others) for number in sorted(numbered, key=lambda event: event.start)]


def step_of(marked: Event, events: Sequence[Event]) -> Step:
    """What happened in a step, and what it launched."""
    mine = {
        event.args.get("correlation")
        for event in events
        if event.category in CALLS and marked.start <= event.start < marked.end
    } - {None}
    gpu = [event for event in events if event.category in ON_GPU]
    end = max([marked.end, *(event.end for event in gpu if event.args.get("correlation") in mine)])

    def inside(*categories: str) -> list[Event]:
        """From the step's beginning; what began before it or ends after it is cut."""
        spans = [
            (event, max(event.start, marked.start), min(event.end, end))
            for event in events
            if event.category in categories and event.end > marked.start and event.start < end
        ]
        return sorted(
            (
                Event(event.name, event.category, first - marked.start, last - first, event.thread, event.args)
                for event, first, last in spans
            ),
            key=lambda event: (event.start, -event.length),
        )

    return Step(
        marked.name,
        marked.length,
        end - marked.start,
        outermost(inside("user_annotation")),
        outermost(inside("cpu_op")),
        outermost(inside(*CALLS)),
        inside(*ON_GPU),
    )


def outermost(events: Iterable[Event]) -> list[Event]:
    """Of each thread what lies in nothing else. The events have to be in order."""
    kept, until = [], dict[object, float]()
    for event in events:
        if event.start >= until.get(event.thread, -math.inf):
            until[event.thread] = event.end
            kept.append(event)
    return kept


def gaps(kernels: Sequence[Event], length: float) -> list[tuple[float, float]]:
    """When nothing runs on the GPU."""
    found, busy = [], 0.0
    for kernel in kernels:
        if kernel.start > busy:
            found.append((busy, kernel.start))
        busy = max(busy, kernel.end)
    return found + [(busy, length)] * (length > busy)


# ---- what a reader looks for --------------------------------------------------------------------------------------


# --8<-- [start:reading]
def reading(step: Step) -> Iterator[str]:
    """What to look for in a step, in the order in which to look."""
    done = f", the GPU after {step.length:.0f} us" if step.kernels else ""
    yield f"{step.name}: the host is done after {step.host:.0f} us{done}"
    if not step.kernels:
        yield "no GPU in this trace: it has operations, but no launches, kernels or waits"
        for event in sorted(step.operations, key=lambda event: -event.length)[:3]:
            yield f"  {event.length:.0f} us  {readable(event.name)}"
    else:
        yield from on_gpu(step)
    regions = [readable(event.name) for event in step.operations if re.search("Region|CompiledFunction", event.name)]
    yield f"compiled regions: {len(regions)}{': ' * bool(regions)}{', '.join(regions)}"


def on_gpu(step: Step) -> Iterator[str]:
    launches, idle = step.launches(), gaps(step.kernels, step.length)
    yield f"launches: {len(launches)}, which start {sum(len(kernels) for _, kernels in launches)} kernels and copies"
    graphs = [len(kernels) for call, kernels in launches if "GraphLaunch" in call.name]
    yield f"CUDA graphs: {len(graphs)}{', of kernels: ' * bool(graphs)}{', '.join(map(str, graphs))}"
    unused = sum(end - start for start, end in idle)
    yield f"GPU busy: {step.length - unused:.0f} us, {1 - unused / step.length:.0%} of the step"
    if idle:
        start, end = max(idle, key=lambda gap: gap[1] - gap[0])
        yield f"gaps: {len(idle)}, the longest {end - start:.0f} us, while the host is in {doing(step, start, end)}"
    if launches:
        delays = [kernels[0].start - call.start for call, kernels in launches]
        yield f"from launch to kernel: median {statistics.median(delays):.0f} us, longest {max(delays):.0f} us"
    waits = [call for call in step.calls if WAIT.match(call.name)]
    where = f", longest in {doing(step, *span(max(waits, key=lambda call: call.length)))}" if waits else ""
    yield f"waits: {len(waits)}, {sum(call.length for call in waits):.0f} us{where}"


def doing(step: Step, start: float, end: float) -> str:
    """What the host did for most of a time: an operation, a wait by itself, or what record_function named."""
    waits = [call for call in step.calls if WAIT.match(call.name)]
    for events in (step.operations, waits, step.named):
        for event in events:
            if min(event.end, end) - max(event.start, start) > (end - start) / 2:
                return readable(event.name)
    return "Python"


def span(event: Event) -> tuple[float, float]:
    return event.start, event.end


# --8<-- [end:reading]


def main(arguments: list[str]) -> int:
    """Read one step of a trace; returns the exit status."""
    parser = argparse.ArgumentParser("profiling.py", description="What happened in one step of a trace?")
    parser.add_argument("trace", help="what torch.profiler's export_chrome_trace wrote")
    parser.add_argument("--step", type=int, help="counted from 0 (default: the second, if there is one)")
    options = parser.parse_args(arguments)
    try:
        steps = steps_of(read(options.trace))
        wanted = min(1, len(steps) - 1) if options.step is None else options.step
        if not 0 <= wanted < len(steps):
            raise ValueError(f"--step: expected 0 to {len(steps) - 1}, got {wanted}")
    except (ValueError, OSError) as error:
        print(f"profiling: {error}", file=sys.stderr)
        return 2
    print("\n".join(reading(steps[wanted])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

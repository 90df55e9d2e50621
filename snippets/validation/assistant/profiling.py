"""Which kernels ran on the GPU, for how long, from which line, and how near they came to the ceiling of the machine."""

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from . import clock
from .calls import Calls, Recorder, run_recorded, tensors_of
from .findings import MEMORY, Finding, size
from .lines import Line
from .settings import nothing_changed, quiet
from .subject import Subject, differentiate, loss_of
from .trace import Trace


@dataclass(frozen=True)
class Kernel:
    """All launches of one kernel from one line."""

    name: str
    line: Line
    seconds: float
    launches: int


@dataclass
class Profile:
    """One step on the GPU.

    Attributes:
        kernels: the longest first.
        busy: seconds in which the GPU had work.
        step: seconds that the step took by the wall clock, launches included.
        ceilings: bytes a second of a copy, and FLOP a second of a product in bf16, measured beforehand.
    """

    kernels: list[Kernel]
    busy: float
    step: float
    ceilings: dict[str, float] = field(default_factory=dict)
    lines: dict[Line, tuple[float, float]] = field(default_factory=dict)  # seconds in forward, and at the ceiling

    @property
    def share_busy(self) -> float:
        return min(1.0, self.busy / self.step) if self.step else 0.0


def profile(
    subject: Subject, trace: Trace, find_ceilings: Callable[[torch.device], dict[str, float]] | None = None
) -> Profile:
    """Time one step, profile another, and say which line launched which kernel."""
    with nothing_changed(), quiet():
        twin = subject.fresh()
        step = clock.measure({"step": lambda: stepped(twin)}, subject.device, rounds=5)["step"].p50
        events = profiled(twin)
        kernels = sorted(by_kernel(events), key=lambda kernel: -kernel.seconds)
        ceilings = (find_ceilings or measured_ceilings)(subject.device)
    report = Profile(kernels, sum(kernel.seconds for kernel in kernels), step, ceilings)
    report.lines = at_ceiling(events, trace, ceilings)
    return report


def stepped(twin: Subject) -> None:
    """Forward and, where there is a gradient, backward."""
    differentiate(twin, loss_of(twin()))


@functools.cache
def measured_ceilings(device: torch.device) -> dict[str, float]:
    """Of a copy and of a product in bf16, on tensors small enough to fit beside a model, large enough for any GPU."""
    source, target = (torch.zeros(2**26, device=device, dtype=torch.bfloat16) for _ in range(2))
    factors = [torch.randn(4096, 4096, device=device, dtype=torch.bfloat16) for _ in range(2)]
    calls: dict[str, clock.Call] = {"copy": lambda: target.copy_(source), "matrix": lambda: torch.mm(*factors)}
    work = {"copy": 2 * source.nbytes, "matrix": 2 * 4096**3}
    measured = clock.measure(calls, device, rounds=10)
    return {name: work[name] / timed.p50 for name, timed in measured.items()}


class Marked(Calls):
    """Names each call in the profile by its place, so that kernels lead back to lines."""

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        number = len(self.calls)
        with torch.profiler.record_function(f"ridgepoint:{number}"):
            return super().__torch_function__(function, types, args, kwargs)


def profiled(twin: Subject) -> list[tuple[Line, str, float, bool]]:
    """(line, kernel, seconds, whether in forward) of each launch."""
    on_gpu = twin.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    calls = Marked(Recorder(twin.module, tuple(tensors_of((twin.inputs, twin.named)))))
    clock.synchronize(twin.device)
    with torch.profiler.profile(activities=activities) as profiler:
        with calls:
            output = run_recorded(twin)
        differentiate(twin, loss_of(output))
        clock.synchronize(twin.device)
    return list(launches(profiler, calls, on_gpu))


def launches(profiler: Any, calls: Calls, on_gpu: bool) -> Iterator[tuple[Line, str, float, bool]]:
    """Each launch with its line: forward by the mark around it, backward by autograd's sequence number."""
    by_sequence: dict[int, Line] = {}
    events = profiler.events()
    for event in events:
        line = marked_line(event, calls)
        if line is not None and event.sequence_nr >= 0:
            by_sequence[event.sequence_nr] = line  # the last to see a number is the one that took it
    marks = {event.name for event in events if event.is_user_annotation or event.name.startswith("ridgepoint:")}
    alone: dict[str, float] = defaultdict(float)  # seconds of kernels that no operation of PyTorch launched
    for event in events:
        if event.device_type != torch.autograd.DeviceType.CPU and event.name not in marks:
            alone[event.name] += event.time_range.elapsed_us() * 1e-6
    for event in events:
        line = marked_line(event, calls)
        forward = line is not None
        if line is None:
            line = by_sequence.get(sequence_of(event), Line("backward", 0))
        if on_gpu:
            for kernel in event.kernels:
                if kernel.name not in marks:  # a mark has a span on the GPU, too, and is no kernel
                    alone[kernel.name] -= kernel.duration * 1e-6
                    yield line, kernel.name, kernel.duration * 1e-6, forward
        elif event.name.startswith("aten::") and event.self_cpu_time_total > 0:  # a CPU has operations only
            yield line, event.name, event.self_cpu_time_total * 1e-6, forward
    for name, seconds in alone.items():
        if seconds > 1e-6:
            yield Line("launched elsewhere", 0), name, seconds, False


def marked_line(event: Any, calls: Calls) -> Line | None:
    """The line of the call that an event belongs to."""
    while event is not None:
        name, _, number = event.name.partition(":")
        if name == "ridgepoint" and number.isdigit() and int(number) < len(calls.calls):
            return calls.calls[int(number)].line
        event = event.cpu_parent
    return None


def sequence_of(event: Any) -> int:
    """The sequence number of the autograd function that an event ran under."""
    while event is not None:
        if event.name.startswith("autograd::engine::evaluate_function"):
            return event.sequence_nr
        event = event.cpu_parent
    return -1


def by_kernel(events: list[tuple[Line, str, float, bool]]) -> list[Kernel]:
    """Launches of the same kernel from the same line, added up."""
    seconds: dict[tuple[str, Line], list[float]] = defaultdict(list)
    for line, name, took, _ in events:
        seconds[name, line].append(took)
    return [Kernel(name, line, sum(took), len(took)) for (name, line), took in seconds.items()]


# --8<-- [start:ceiling]
def at_ceiling(
    events: list[tuple[Line, str, float, bool]], trace: Trace, ceilings: dict[str, float]
) -> dict[Line, tuple[float, float]]:
    """For each line: the seconds of its kernels in forward, and what its bytes and FLOPs would take at the ceiling."""
    spent: dict[Line, float] = defaultdict(float)
    for line, _, seconds, forward in events:
        if forward:
            spent[line] += seconds
    least: dict[Line, float] = defaultdict(float)
    for call in trace.calls:
        least[call.line] += max(call.flops / ceilings["matrix"], call.moved / ceilings["copy"])
    return {line: (seconds, least[line]) for line, seconds in spent.items() if line in least}


# --8<-- [end:ceiling]


def slow_kernels(profile: Profile) -> list[Finding]:
    """What the profile says: a GPU that waits for the host, and lines whose kernels are far from their ceiling."""
    found = []
    if profile.share_busy < 0.6 and profile.kernels:
        longest = profile.kernels[0].line
        found.append(
            Finding(
                "host-bound",
                "The GPU waits for the host",
                (longest,),
                f"it has work for {profile.share_busy:.0%} of a step of {profile.step * 1e3:.2f} ms",
                "launch less: torch.compile, or a CUDA graph (mode='reduce-overhead')",
                "compiler/what-compile-does.md#what-is-slow",
                saves=int((profile.step - profile.busy) * MEMORY),
            )
        )
    for line, (spent, least) in sorted(profile.lines.items(), key=lambda item: item[1][1] - item[1][0])[:5]:
        if spent > 0.05 * profile.busy and least < 0.4 * spent:
            kernels = [kernel.name for kernel in profile.kernels if kernel.line == line]
            found.append(
                Finding(
                    "far-from-ceiling",
                    "Kernels far from what the machine can do",
                    (line,),
                    f"{spent * 1e6:.0f} us in forward, {spent / profile.busy:.0%} of the GPU's time, by "
                    f"{kernels[0][:60]}; "
                    f"at the ceilings of a copy and of products in bf16 it would be {least * 1e6:.0f} us",
                    "see what else is said about this line; if nothing is, compile it with mode='max-autotune'",
                    "validation/roofline.md#two-bounds-and-the-point-where-they-meet",
                    saves=int((spent - least) * MEMORY),
                    weight="note",
                )
            )
    return found


def in_words(profile: Profile) -> list[str]:
    """The longest kernels, one a line."""
    rows = [f"{profile.step * 1e3:.2f} ms a step, the GPU busy for {profile.share_busy:.0%} of it"]
    for kernel in profile.kernels[:10]:
        share = kernel.seconds / profile.busy if profile.busy else 0.0
        rows.append(
            f"{share:6.1%} {kernel.seconds * 1e6:9.1f} us {kernel.launches:5d} × {kernel.name[:48]:48} {kernel.line}"
        )
    if profile.ceilings:
        rows.append(f"ceilings: {size(profile.ceilings['copy'])}/s, {profile.ceilings['matrix'] / 1e12:.2f} TFLOP/s")
    return rows

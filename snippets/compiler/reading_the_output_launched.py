"""What a GPU did with the generated code: the grid and the configuration of each launch, what else was tried, and what
a profiler calls the kernels, with the line of source of each.

    python -m snippets.compiler.reading_the_output_launched

Needs a GPU.
"""

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch.profiler import ProfilerActivity

from snippets.compiler.reading_the_output_provenance import lines_of_kernels
from snippets.compiler.reading_the_output_triton import SHAPES, block


# --8<-- [start:noted]
@dataclass(frozen=True)
class Configuration:
    """What Inductor decides about a launch: sizes such as XBLOCK, warps of a program, stages of the pipelined loads."""

    sizes: tuple[tuple[str, int], ...]
    warps: int
    stages: int

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {size}" for name, size in self.sizes)
        return f"{sizes:<22} num_warps {self.warps:2}  num_stages {self.stages}"


@contextlib.contextmanager
def noted() -> Iterator[tuple[list[tuple[str, Configuration]], dict[str, dict[Configuration, float]]]]:
    """Every launch of a generated kernel, in order, and the seconds of each configuration where several were timed."""
    launches: list[tuple[str, Configuration]] = []
    tried: dict[str, dict[Configuration, float]] = {}
    run, time_all = CachingAutotuner.run, CachingAutotuner.benchmark_all_configs

    def running(kernel: Any, *arguments: Any, **keywords: Any) -> Any:
        result = run(kernel, *arguments, **keywords)
        (launcher,) = kernel.launchers  # those that lost are gone
        launches.append((name_of(kernel), configuration(launcher)))
        return result

    def timing(kernel: Any, *arguments: Any, **keywords: Any) -> Any:
        milliseconds = time_all(kernel, *arguments, **keywords)
        tried[name_of(kernel)] = {configuration(launcher): each * 1e-3 for launcher, each in milliseconds.items()}
        return milliseconds

    with mock.patch.multiple(CachingAutotuner, run=running, benchmark_all_configs=timing):
        yield launches, tried


def name_of(kernel: Any) -> str:
    return kernel.inductor_meta["kernel_name"]


def configuration(launcher: Any) -> Configuration:
    chosen = launcher.config
    return Configuration(tuple(chosen.kwargs.items()), chosen.num_warps, chosen.num_stages)


# --8<-- [end:noted]


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


def launch_table(launches: Iterable[tuple[str, Configuration]], ran: Iterable[Ran]) -> str:
    """What Inductor chose beside what the GPU got, for each launch of a generated kernel."""
    lines = [f"{'kernel':<52}{'grid':>8}{'threads':>9}{'registers':>11}"]
    generated = [kernel for kernel in ran if kernel.name.startswith("triton_")]
    for (name, chosen), kernel in zip(launches, generated, strict=True):
        if name != kernel.name:
            raise RuntimeError(f"expected {name} to be launched, the profiler saw {kernel.name}")
        lines.append(f"{name:<52}{across(kernel.grid):>8}{across(kernel.threads):>9}{kernel.registers:>11}")
        lines.append(f"    {chosen}")
    return "\n".join(lines)


def across(sizes: tuple[int, ...]) -> str:
    """A grid or a block, without the directions in which it is 1 wide: `64x2`."""
    width = max((index + 1 for index, size in enumerate(sizes) if size > 1), default=1)
    return "x".join(map(str, sizes[:width]))


def trial_table(tried: Mapping[str, Mapping[Configuration, float]]) -> str:
    """The configurations that were timed, the fastest of each kernel with a star."""
    lines = []
    for name, seconds in tried.items():
        lines.append(name)
        for each, time in seconds.items():
            lines.append(f"  {'*' if time == min(seconds.values()) else ' '} {each}   {time * 1e6:8.1f} us")
    return "\n".join(lines)


# --8<-- [start:lines]
def profile_table(ran: Iterable[Ran], graphs: Iterable[Mapping[str, list[str]]]) -> str:
    """The kernels in order, with the line of source of each, where each launch of the code became one kernel."""
    ran = list(ran)
    launches = [(launch.partition(":")[0], lines) for graph in graphs for launch, lines in graph.items()]
    named = {name: lines for name, lines in launches if name.startswith("triton_")}
    in_order = [lines for _, lines in launches] if len(launches) == len(ran) else None
    total = sum(kernel.seconds for kernel in ran)
    rows = [f"{'GPU time':>10} {'share':>6}  {'the name that the profiler shows':<53} line of source"]
    for index, kernel in enumerate(ran):
        lines = named.get(kernel.name, in_order[index] if in_order else [])
        text = " | ".join(line.partition(".py:")[2].partition(": ")[2] for line in lines)
        name = kernel.name if len(kernel.name) <= 52 else f"{kernel.name[:51]}…"
        rows.append(f"{kernel.seconds * 1e6:7.1f} us {kernel.seconds / total:6.1%}  {name:<53} {text}".rstrip())
    return "\n".join(rows)


# --8<-- [end:lines]


def main() -> None:
    """Compile the function and its backward, and print what was tried, launched and profiled; then eager's kernels."""
    if not torch.cuda.is_available():
        print("needs a GPU: on a CPU nothing has a grid, and a profiler sees the C++ kernels as calls")
        return
    inputs = [torch.randn(shape, device="cuda").bfloat16().requires_grad_() for shape in SHAPES]
    gradient = torch.randn(SHAPES[0][0], SHAPES[-1][-1], device="cuda").bfloat16()
    compiled = torch.compile(block, dynamic=False)

    def step(function: Callable = compiled) -> None:
        torch.autograd.grad(function(*inputs), inputs, gradient)

    with noted() as (_, tried):
        graphs = lines_of_kernels(step)
    step()
    with noted() as (launches, _):
        ran = profiled(step)
    print("==== tried")
    print(trial_table(tried))
    print("==== launched")
    print(launch_table(launches, ran))
    print("==== profile")
    print(profile_table(ran, graphs))
    step(block)
    print("==== eager")
    for kernel in profiled(lambda: step(block)):
        print(f"{kernel.seconds * 1e6:7.1f} us  {kernel.name[:98]}")


if __name__ == "__main__":
    main()

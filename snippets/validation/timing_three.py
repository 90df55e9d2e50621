"""The same calls under three timers, this site's, PyTorch's and Triton's, and what each time includes.

Run `python -m snippets.validation.timing_three`.
"""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.utils.benchmark

from snippets.validation.timing import Call, measure
from snippets.validation.timing_your_op import fused, written_out


# --8<-- [start:others]
def benchmark(call: Call) -> torch.utils.benchmark.utils.common.Measurement:
    """PyTorch's timer: the host's clock around many calls in a row. Unless told, it takes one thread on a CPU."""
    timer = torch.utils.benchmark.Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=0.2)  # has .median, .mean and .iqr, in seconds


def do_bench(call: Call) -> list[float]:
    """Triton's timer: two events on the GPU around each call, with a cold cache. Unless told, it returns the mean."""
    from triton.testing import do_bench

    return [milliseconds * 1e-3 for milliseconds in do_bench(call, return_mode="all")]


# --8<-- [end:others]


@dataclass(frozen=True)
class Timer:
    """A way to time a call.

    Attributes:
        inputs: where a call finds its inputs, if the cache is large enough for them.
        launches: whether the time for which the GPU waits for the host counts.
        seconds: what the timer says of a call, by what is made of its samples.
    """

    inputs: str
    launches: str
    seconds: Callable[[Call], Mapping[str, float]]


def timers(device: torch.device) -> dict[str, Timer]:
    """Those that this device has: on a CPU a call begins and ends with the host's."""

    def measured(mode: str) -> Callable[[Call], Mapping[str, float]]:
        return lambda call: {"median": measure({"": call}, device, mode)[""].p50}

    def benchmarked(call: Call) -> Mapping[str, float]:
        found = benchmark(call)
        return {"median": found.median, "mean": found.mean}

    def one_thread(call: Call) -> Mapping[str, float]:
        timer = torch.utils.benchmark.Timer("call()", globals={"call": call})
        return {"median": timer.blocked_autorange(min_run_time=0.2).median}

    def benched(call: Call) -> Mapping[str, float]:
        seconds = do_bench(call)
        return {"median": statistics.median(seconds), "mean": statistics.mean(seconds)}

    if device.type == "cpu":
        return {
            "measure, calls": Timer("cache", "all", measured("calls")),
            "Timer": Timer("cache", "all", benchmarked),
            "Timer, 1 thread": Timer("cache", "all", one_thread),
        }
    return {
        "measure, device": Timer("memory", "none", measured("device")),
        "do_bench": Timer("memory", "if late", benched),
        "measure, graph": Timer("cache", "none", measured("graph")),
        "measure, calls": Timer("cache", "all", measured("calls")),
        "Timer": Timer("cache", "all", benchmarked),
    }


def operations(device: torch.device) -> dict[tuple[str, str], Call]:
    """What is timed, by what it is and its shape: short, many that are short, and ever longer."""
    small = torch.randn(64, 1024, device=device)
    calls: dict[tuple[str, str], Call] = {
        ("softmax", "64x1024"): lambda: fused(small),
        ("written out", "64x1024"): lambda: written_out(small),
    }
    if device.type == "cuda":
        calls["32 in a row", "64x1024"] = lambda: [fused(small) for _ in range(32)]
    for rows in (2048, 8192, 65536) if device.type == "cuda" else (1024,):
        large = torch.randn(rows, 4096, device=device)
        calls["softmax", f"{rows}x4096"] = lambda large=large: fused(large)  # type: ignore[misc]
    return calls


def table(timers: Mapping[str, Timer], calls: Mapping[tuple[str, str], Call]) -> str:
    """A line for each timer and what is made of its samples: what it includes, and its time for each call."""

    def line(name: str, inputs: str, launches: str, *cells: str) -> str:
        return f"{name:<24}{inputs:>7}{launches:>9}" + "".join(f"{cell:>12}" for cell in cells)

    lines = [line("", "inputs", "launches", *(name for name, _ in calls))]
    lines.append(line("", "from", "counted", *(shape for _, shape in calls)))
    for name, timer in timers.items():
        found = [timer.seconds(call) for call in calls.values()]
        for statistic in found[0]:
            cells = (f"{seconds[statistic] * 1e6:.1f} us" for seconds in found)
            lines.append(line(f"{name}: {statistic}", timer.inputs, timer.launches, *cells))
    return "\n".join(lines)


def main() -> None:
    """Print the table, on a GPU with those timers that need one."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print("==== three timers")
    print(table(timers(device), operations(device)))


if __name__ == "__main__":
    main()

"""How long does a call take? The timer behind every number on this site.

Run `python -m snippets.validation.timing` to see the three mistakes that it avoids.
"""
# --8<-- [start:imports]
import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Call = Callable[[], object]
# --8<-- [end:imports]


# --8<-- [start:timing]
@dataclass(frozen=True)
class Timing:
    """Seconds per call: the 20th, 50th and 80th percentile over `samples` samples."""

    p20: float
    p50: float
    p80: float
    samples: int

    @classmethod
    def of(cls, seconds: list[float]) -> "Timing":
        """Summarise samples (seconds per call)."""
        if len(seconds) < 2:
            return cls(seconds[0], seconds[0], seconds[0], 1)
        cuts = statistics.quantiles(seconds, n=10, method="inclusive")
        return cls(cuts[1], cuts[4], cuts[7], len(seconds))
# --8<-- [end:timing]


# --8<-- [start:flush]
class ColdCache:
    """Evicts the L2 cache before a sample, so that inputs come from memory as they would in a model."""

    def __init__(self, device: torch.device):
        l2 = torch.cuda.get_device_properties(device).L2_cache_size
        self.filler = torch.empty(max(4 * l2, 256 * 2**20), dtype=torch.uint8, device=device)

    def flush(self) -> None:
        self.filler.fill_(1)
# --8<-- [end:flush]


# --8<-- [start:device]
class DeviceTimer:
    """Times one call on the GPU, from its first kernel's start to its last kernel's end.

    Two events around a call measure the host too, whenever the GPU waits for the next launch. So the
    GPU gets something to do first (a spin): by the time it arrives at the first event, the host must
    have queued the whole call. If it had not, the sample is thrown away and the head start doubled.
    """

    def __init__(self, device: torch.device, head_start_cycles: int = 100_000):
        self.cache = ColdCache(device)
        self.head_start_cycles = head_start_cycles

    def sample(self, call: Call) -> float:
        """Seconds that one call took on the GPU."""
        for _ in range(12):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self.cache.flush()
            torch.cuda._sleep(self.head_start_cycles)
            start.record()
            call()
            end.record()
            host_was_ahead = not start.query()
            end.synchronize()
            if host_was_ahead:
                return start.elapsed_time(end) * 1e-3
            self.head_start_cycles *= 2
        raise RuntimeError("the call synchronises with the GPU: time it with mode='calls'")
# --8<-- [end:device]


# --8<-- [start:calls]
def seconds_per_call(call: Call, device: torch.device, at_least: float = 0.01) -> float:
    """Wall-clock seconds per call over a batch of back-to-back calls: the host's time counts."""
    calls = 1
    while True:
        synchronize(device)
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize(device)
        elapsed = time.perf_counter() - begin
        if elapsed >= at_least:
            return elapsed / calls
        calls = max(calls * 2, math.ceil(calls * at_least / max(elapsed, 1e-9)))
# --8<-- [end:calls]


# --8<-- [start:power]
def burst(call: Call, device: torch.device) -> float:
    """Seconds per call over a few milliseconds of work after a pause: clocks high, chip cool."""
    synchronize(device)
    time.sleep(0.05)
    return seconds_per_call(call, device, at_least=0.003)


def sustained(call: Call, device: torch.device) -> float:
    """Seconds per call over the second half of a second of uninterrupted work: the power limit rules."""
    seconds_per_call(call, device, at_least=0.5)
    return seconds_per_call(call, device, at_least=0.5)
# --8<-- [end:power]


# --8<-- [start:measure]
def measure(
    calls: Mapping[str, Call],
    device: torch.device | str,
    mode: str = "device",
    rounds: int = 30,
    patience: float = 20.0,
) -> dict[str, Timing]:
    """Time several calls side by side, in one process, interleaved.

    Args:
        calls: what to time, by name. Each is called without arguments.
        device: where they run.
        mode: "device" (GPU time of one call, cold L2), "calls" (wall clock per back-to-back call, so that
            launch overhead counts), "burst" or "sustained" (wall clock, see there). On a CPU only "calls" exists.
        rounds: samples for each call; each round takes one sample of every call, in rotating order, so
            that drift of clocks and temperature falls on all alike.
        patience: seconds after which no new round begins (at least five rounds are taken).

    Returns:
        Seconds per call for each name.

    Raises:
        ValueError: the mode is unknown, or needs a GPU and the device is a CPU.
    """
    device = torch.device(device)
    if mode not in ("device", "calls", "burst", "sustained"):
        raise ValueError(f"mode: expected device, calls, burst or sustained, got {mode!r}")
    if device.type == "cpu" and mode != "calls":
        raise ValueError(f"mode: a CPU has only 'calls', got {mode!r}")
    sample = {
        "device": lambda: DeviceTimer(device).sample,
        "calls": lambda: lambda call: seconds_per_call(call, device),
        "burst": lambda: lambda call: burst(call, device),
        "sustained": lambda: lambda call: sustained(call, device),
    }[mode]()
    names = list(calls)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for name in names:  # warm up: compilation, allocation, clocks
        for _ in range(3):
            calls[name]()
    gc.collect()
    gc.disable()  # a collection in the middle of a sample is not the call's
    try:
        began = time.perf_counter()
        for turn in range(rounds):
            if turn >= 5 and time.perf_counter() - began > patience:
                break
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                samples[name].append(sample(calls[name]))
    finally:
        gc.enable()
    return {name: Timing.of(seconds) for name, seconds in samples.items()}
# --8<-- [end:measure]


# --8<-- [start:graph]
def captured(call: Call) -> Call:
    """Record a call's kernels in a CUDA graph; the result replays them with one launch.

    The outputs that `call` made during capture are overwritten by each replay, and returned by it.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # warm up off the capturing stream, as capture demands
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = call()

    def replay() -> object:
        graph.replay()
        return outputs

    return replay
# --8<-- [end:graph]


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished what was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)

"""How long does a call take? The timer behind every number on this site.

Run `python -m snippets.validation.timing_mistakes` to see it beside the timers that mislead.
"""

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

Call = Callable[[], object]
MODES = ("device", "graph", "calls", "burst", "sustained")


@dataclass(frozen=True)
class Timing:
    """Seconds per call: the 20th, 50th and 80th percentile over `samples` samples, each over `calls` calls.

    `calls` is None where a sample is as many calls as its time asks for.
    """

    p20: float
    p50: float
    p80: float
    samples: int
    calls: int | None = None

    @classmethod
    def of(cls, seconds: list[float], calls: int | None = None) -> "Timing":
        """Summarise samples (seconds per call, at least one)."""
        if len(seconds) == 1:
            return cls(seconds[0], seconds[0], seconds[0], 1, calls)
        deciles = statistics.quantiles(seconds, n=10, method="inclusive")
        return cls(deciles[1], deciles[4], deciles[7], len(seconds), calls)


def nothing() -> None:
    """A call that does nothing."""


# --8<-- [start:flush]
class ColdCache:
    """Fills the L2 cache with something else, so that the call's inputs come from memory.

    It reads. What a flush writes, memory does not have yet: the call after it would have to push that out
    of the cache, line by line, and would be timed with it.
    """

    def __init__(self, device: torch.device):
        l2 = torch.cuda.get_device_properties(device).L2_cache_size
        self.filler = torch.zeros(max(4 * l2, 256 * 2**20) // 4, dtype=torch.int32, device=device)

    def flush(self) -> None:
        self.filler.max()


# --8<-- [end:flush]


# --8<-- [start:device]
class DeviceTimer:
    """Times one call on the GPU, from the moment its first kernel may start to its last kernel's end.

    Two events around a call time the host too, whenever the GPU waits for the next launch. So the GPU
    first gets something to do, a spin, and the host queues the whole call meanwhile. Had the GPU reached
    the first event before the last one was queued, the sample is thrown away; the spin grows when that
    happens twice in a row.
    """

    def __init__(self, device: torch.device, cold: bool = True, spin_cycles: int = 100_000):
        self.device = device
        self.cache = ColdCache(device) if cold else None
        self.spin_cycles = spin_cycles

    def sample(self, call: Call, refresh: Call = nothing) -> float:
        """Seconds that one call took on the GPU, after what puts back the inputs that it overwrites.

        Raises:
            RuntimeError: the host never got ahead, even of a spin of a fifth of a second.
        """
        with torch.cuda.device(self.device):
            for attempt in range(24):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                refresh()
                if self.cache:
                    self.cache.flush()
                torch.cuda._sleep(self.spin_cycles)
                start.record()
                call()
                end.record()
                host_was_ahead = not start.query()  # asked after the last launch: the GPU is still before the first
                end.synchronize()
                if host_was_ahead:
                    return start.elapsed_time(end) * 1e-3
                self.spin_cycles *= 1 + attempt % 2
        raise RuntimeError(
            "the host never got ahead of the GPU: the call waits for the GPU (.item(), .cpu(), a synchronise) "
            "or launches more kernels than the queue holds (about a thousand); time it with mode='calls'"
        )


# --8<-- [end:device]


# --8<-- [start:calls]
def seconds_per_call(call: Call, device: torch.device, at_least: float = 0.01, about: float = 0.0) -> float:
    """Wall-clock seconds per call over a batch of back-to-back calls: the host's time counts.

    Where it is known `about` how many seconds a call takes, the first batch is long enough.
    """
    calls = math.ceil(1.1 * at_least / about) if about else 1
    while True:
        elapsed = seconds_of(call, device, calls)
        if elapsed >= at_least:
            return elapsed / calls
        calls = max(calls + 1, math.ceil(1.1 * calls * at_least / max(elapsed, 1e-9)))


def seconds_of(call: Call, device: torch.device, calls: int) -> float:
    """Wall-clock seconds that so many back-to-back calls take together."""
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    synchronize(device)
    return time.perf_counter() - begin


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished what was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# --8<-- [end:calls]


# --8<-- [start:power]
def burst(call: Call, device: torch.device, calls: int) -> float:
    """Seconds per call over some calls after a pause: clocks high, chip cool."""
    synchronize(device)
    time.sleep(0.05)
    return seconds_of(call, device, calls) / calls


def sustained(call: Call, device: torch.device, about: float = 0.0) -> float:
    """Seconds per call over the second half of a second of uninterrupted work: the power limit rules."""
    about = seconds_per_call(call, device, at_least=0.5, about=about)
    return seconds_per_call(call, device, at_least=0.5, about=about)


# --8<-- [end:power]


def measure(
    calls: Mapping[str, Call],
    device: torch.device | str,
    mode: str = "device",
    rounds: int = 30,
    patience: float = 20.0,
    refresh: Mapping[str, Call] | None = None,
) -> dict[str, Timing]:
    """Time several calls side by side, in one process, interleaved.

    Args:
        calls: what to time, by name. Each is called without arguments.
        device: where they run.
        mode: "device" (GPU time of one call, cold L2), "graph" (GPU time per call of a CUDA graph that holds
            many calls, inputs in the L2), "calls" (wall clock per back-to-back call, so that launch overhead
            counts), "burst" or "sustained" (wall clock, see there). A CPU has "calls" only.
        rounds: samples of each call, at least 1. Each round takes one sample of every call, in rotating
            order, so that drift of clocks and temperature falls on all alike.
        patience: seconds after which no new round begins (though five are always taken).
        refresh: by name, what puts back the inputs that a call overwrites. It is called before each sample
            and not timed; where a sample is many calls, all but the first meet what the one before left.

    Returns:
        Seconds per call for each name.

    Raises:
        ValueError: the mode is unknown, or needs a GPU and the device is a CPU.
        RuntimeError: mode is "device" or "graph" and a call waits for the GPU.
    """
    device = torch.device(device)
    check_mode(mode, device)
    names = list(calls)
    before = {name: (refresh or {}).get(name, nothing) for name in names}
    for name in names:  # warm up: compilation, allocation, clocks
        for _ in range(3):
            before[name]()
            calls[name]()
    number = calls_in_a_sample(mode, calls, device)
    if mode == "graph":
        calls = {name: captured(calls[name], number) for name in names}
    sample = sampler(mode, device, number)
    samples: dict[str, list[float]] = {name: [] for name in names}
    # --8<-- [start:rounds]
    with no_garbage_collection():
        began = time.perf_counter()
        for turn in range(rounds):
            if turn >= 5 and time.perf_counter() - began > patience:
                break
            for step in range(len(names)):
                name = names[(turn + step) % len(names)]
                samples[name].append(sample(calls[name], before[name]))
    # --8<-- [end:rounds]
    return {name: Timing.of(seconds, number) for name, seconds in samples.items()}


def check_mode(mode: str, device: torch.device) -> None:
    """Raise a ValueError if it is no mode of `measure` there."""
    if mode not in MODES:
        raise ValueError(f"mode: expected {', '.join(MODES)}, got {mode!r}")
    if device.type == "cpu" and mode != "calls":
        raise ValueError(f"mode: a CPU has only 'calls', got {mode!r}")


# --8<-- [start:number]
def calls_in_a_sample(mode: str, calls: Mapping[str, Call], device: torch.device) -> int | None:
    """How many calls a sample is, the same for all that are timed side by side; None where each decides.

    Ten calls or more make a burst, and three milliseconds, but no tenth of a second: then it is a load.
    A graph holds a millisecond of calls, beside which its own launch is little.
    """
    if mode == "device" or not calls:
        return 1
    if mode == "graph":
        timer = DeviceTimer(device, cold=False)
        return min(100, math.ceil(1e-3 / min(timer.sample(call) for call in calls.values())))
    if mode == "burst":
        seconds = [seconds_per_call(call, device, at_least=0.003) for call in calls.values()]
        return max(10, min(math.ceil(0.003 / min(seconds)), math.floor(0.1 / max(seconds))))
    return None


# --8<-- [end:number]


def sampler(mode: str, device: torch.device, calls: int | None = None) -> Callable[[Call, Call], float]:
    """What takes one sample, in seconds per call, of a call (in mode "graph", of a graph of so many calls)."""
    if mode in ("device", "graph"):
        timer = DeviceTimer(device, cold=mode == "device")
        return lambda call, refresh: timer.sample(call, refresh) / (calls or 1)
    clocks: dict[str, Callable[..., float]] = {
        "calls": seconds_per_call,
        "sustained": sustained,
        "burst": lambda call, device, about: burst(call, device, calls or 10),
    }
    clock = clocks[mode]
    about: dict[int, float] = {}  # by call, what its last sample said

    def sample(call: Call, refresh: Call) -> float:
        refresh()
        about[id(call)] = clock(call, device, about=about.get(id(call), 0.0))
        return about[id(call)]

    return sample


# --8<-- [start:yardstick]
def yardstick(device: torch.device) -> dict[str, float]:
    """How fast the host is, in seconds: an empty Python call, an eager call of a trivial op, a launch by itself.

    The same code on another machine with the same GPU may take twice the time on the host. So a time that the host
    rules is worth little alone, and more beside these. A CPU has no launch.
    """
    number = torch.zeros(1, device=device)
    steps: dict[str, Call] = {"python_call": nothing, "eager_launch": number.neg}
    if device.type == "cuda":
        steps["cuda_launch"] = partial(torch.cuda._sleep, 0)
    return {name: timing.p50 for name, timing in measure(steps, device, "calls", rounds=5, patience=0.0).items()}


# --8<-- [end:yardstick]


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A collection in the middle of a sample is not the call's."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


# --8<-- [start:graph]
def captured(call: Call, calls: int = 1) -> Call:
    """Record the kernels of a call, or of several in a row, in a CUDA graph; the result replays them with one launch.

    What the last call returned during capture is overwritten by each replay, and returned by it. A graph holds
    addresses and no tensors: keep all that the call reads for as long as you replay.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # warm up off the default stream, as capture demands
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            outputs = call()

    def replay() -> object:
        graph.replay()
        return outputs

    return replay


# --8<-- [end:graph]

"""How long does a call take by the wall clock? In parts a copy of snippets/validation/timing.py.

The folder stands alone, so it has its own copy of what it uses; a test holds the two equal, but for `synchronize`,
which here waits for any accelerator.
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
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


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


def measure(calls: Mapping[str, Call], device: torch.device, rounds: int, patience: float = 20.0) -> dict[str, Timing]:
    """Seconds per back-to-back call of each of several, launches included; see `in_turns`."""
    for call in calls.values():  # warm up: compilation, allocation, clocks
        for _ in range(3):
            call()
    return in_turns({name: partial(seconds_per_call, calls[name], device) for name in calls}, rounds, patience)


def in_turns(sample: Mapping[str, Callable[[], float]], rounds: int, patience: float) -> dict[str, Timing]:
    """Samples of several things, one of each in a round, in rotating order: drift of clocks falls on all alike.

    Args:
        sample: by name, what takes a sample and returns its seconds.
        patience: seconds after which no new round begins (though five are always taken).
    """
    names, began = list(sample), time.perf_counter()
    samples: dict[str, list[float]] = {name: [] for name in names}
    with no_garbage_collection():
        for turn in range(rounds):
            if turn >= 5 and time.perf_counter() - began > patience:
                break
            for step in range(len(names)):
                name = names[(turn + step) % len(names)]
                samples[name].append(sample[name]())
    return {name: Timing.of(seconds) for name, seconds in samples.items()}

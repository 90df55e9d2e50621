"""What the allocator gives out while something runs: tensors, what operations need inside, compiled code."""

import contextlib
import os
from collections.abc import Iterator

import torch
from torch.autograd.profiler import profile, record_function

OWN = "assistant: aside"


class Allocated:
    """The most bytes that were in use at once beyond what was there, as the device's allocator saw it.

    Attributes:
        peak: afterwards; None where it cannot be known: another profiler runs, or the device counts nothing.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.peak: int | None = None
        self.profile: profile | None = None
        self.own = self.before = 0

    def __enter__(self) -> "Allocated":
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            self.before = torch.cuda.memory_allocated(self.device)
        elif self.device.type == "cpu" and not torch.autograd._profiler_enabled():
            with silent():
                self.profile = profile(profile_memory=True).__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            self.peak = max(self.peak or 0, self.highest())
        elif self.profile is not None:
            with contextlib.suppress(AssertionError, RuntimeError), silent():  # somebody's profiler has ended this one
                self.profile.__exit__(None, None, None)
                self.peak = highest(self.profile.kineto_results)

    def highest(self) -> int:
        """On a GPU: the peak since it was last asked for."""
        return torch.cuda.max_memory_allocated(self.device) - self.before - self.own

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """What is allocated within it does not count, and is held until the end."""
        if self.device.type != "cuda":
            with record_function(OWN):
                yield
            return
        self.peak, before = self.highest(), torch.cuda.memory_allocated(self.device)
        yield
        self.own += torch.cuda.memory_allocated(self.device) - before
        torch.cuda.reset_peak_memory_stats(self.device)


def highest(results: torch._C._autograd._ProfilerResult) -> int:
    """The peak of the CPU's allocations, without those that were put aside."""
    events = results.events()
    own = [(event.start_ns(), event.end_ns()) for event in events if event.name() == OWN]
    moves = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    now = most = 0
    for at, count in moves:
        if not any(begin <= at <= end for begin, end in own):
            now += count
            most = max(most, now)
    return most


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """The profiler writes lines to stderr, unless it is told not to before its first use."""
    before = os.environ.get("KINETO_LOG_LEVEL")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    try:
        yield
    finally:
        if before is None:
            del os.environ["KINETO_LOG_LEVEL"]

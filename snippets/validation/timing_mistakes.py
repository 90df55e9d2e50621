"""The usual ways to time a call wrongly, to be held beside `snippets.validation.timing`.

Run `python -m snippets.validation.timing_mistakes` to see how far each of them is off on the machine at hand.
"""

import statistics
import time
from functools import partial

import torch

from snippets.validation.timing import Call, DeviceTimer, Timing, measure, synchronize


# --8<-- [start:host-clock]
def host_clock(call: Call, device: torch.device) -> Timing:
    """Wrong on a GPU: the call returns when its kernels are queued, and the clock is read then."""
    samples = []
    for _ in range(100):
        synchronize(device)
        begin = time.perf_counter()
        call()
        samples.append(time.perf_counter() - begin)
    return Timing.of(samples)


# --8<-- [end:host-clock]


# --8<-- [start:event-pair]
def event_pair(call: Call, device: torch.device) -> Timing:
    """Wrong for small work: the GPU, idle, waits between the two events for the host to launch."""
    samples = []
    for _ in range(100):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        synchronize(device)
        start.record()
        call()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) * 1e-3)
    return Timing.of(samples)


# --8<-- [end:event-pair]


# --8<-- [start:warm-cache]
def warm_cache(call: Call, device: torch.device) -> Timing:
    """Wrong for memory-bound work that fits in the L2 cache: the last call left its inputs there."""
    timer = DeviceTimer(device, cold=False)
    return Timing.of([timer.sample(call) for _ in range(100)])


# --8<-- [end:warm-cache]


# --8<-- [start:one-by-one]
def one_by_one(call: Call, device: torch.device) -> Timing:
    """Wrong for small work: every sample ends with a wait, and holds a launch and a wake-up besides the work."""
    samples = []
    for _ in range(100):
        synchronize(device)
        begin = time.perf_counter()
        call()
        synchronize(device)
        samples.append(time.perf_counter() - begin)
    return Timing.of(samples)


# --8<-- [end:one-by-one]


# --8<-- [start:mean]
def mean_of_ten(call: Call, device: torch.device) -> Timing:
    """Wrong anywhere: the same clock after a pause, and a mean, which one slow call of ten moves."""
    samples = []
    time.sleep(0.2)
    for _ in range(10):
        synchronize(device)
        begin = time.perf_counter()
        call()
        synchronize(device)
        samples.append(time.perf_counter() - begin)
    return Timing.of([statistics.fmean(samples)])


# --8<-- [end:mean]


def negate(x: torch.Tensor, kernels: int) -> torch.Tensor:
    """Work of a known size: `kernels` launches, each of which reads x's bytes once and writes as many."""
    for _ in range(kernels):
        x = -x
    return x


def main() -> None:
    """Time large work, work that fits in the cache, and many small launches, wrongly and rightly."""
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    anywhere = (one_by_one, mean_of_ten)
    mistakes = (host_clock, event_pair, warm_cache, *anywhere) if on_gpu else anywhere
    if not on_gpu:
        print("no GPU: a call returns when its work is done, so only the last two can mislead here")
    for kernels, elements in ((1, 2**27 if on_gpu else 2**22), (1, 2**21), (32, 2**14)):
        x = torch.randn(elements, device=device)
        call = partial(negate, x, kernels)
        right = measure({"": call}, device, "device" if on_gpu else "calls")[""].p50
        print(f"{kernels} x {x.nbytes / 2**20:g} MiB: {right * 1e6:.1f} us")
        for mistake in mistakes:
            seconds = mistake(call, device).p50
            print(f"    {mistake.__name__:12}{seconds * 1e6:10.1f} us{seconds / right:9.2f} x")


if __name__ == "__main__":
    main()

"""What a benchmark's flush of the L2 cache leaves behind, and what the call after it pays for that.

Run `python -m snippets.validation.timing_flush` on a GPU; its second part asks Nsight Compute (`ncu`) for counters.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from statistics import median

import torch
from torch import Tensor

from snippets.validation.profiling_ncu import ask
from snippets.validation.roofline import stream
from snippets.validation.timing import Call, DeviceTimer


# --8<-- [start:flushes]
def flushes(filler: Tensor) -> dict[str, Callable[[], object]]:
    """Ways to empty an L2 cache, given int32 that it cannot hold."""
    return {
        "none": lambda: None,
        "zero_()": filler.zero_,  # leaves the L2 full of lines that memory does not have yet
        "a read": filler.max,
        "zero_(), a read": lambda: (filler.zero_(), filler.max()),
    }


# --8<-- [end:flushes]


# --8<-- [start:after]
def after(flush: Callable[[], object], call: Call, device: torch.device) -> float:
    """Seconds that the GPU needs for a call, from just after a flush: the median of 50."""
    timer = DeviceTimer(device, cold=False)
    return median(timer.sample(call, refresh=flush) for _ in range(50))


# --8<-- [end:after]


def reading(mib: int) -> Call:
    """A kernel that reads so many MiB; it writes two bytes for each 8 KiB."""
    read = torch.randn(max(mib * 2**19, 1), device="cuda").bfloat16()
    out = torch.empty(2**20, dtype=torch.bfloat16, device="cuda")
    return lambda: stream("read", read, read, out, 4096, 8)


def table(device: torch.device) -> Iterator[str]:
    """A line for each size: the kernel after each flush, and in do_bench."""
    from triton.testing import do_bench

    ways = flushes(torch.empty(2**26, dtype=torch.int32, device=device))
    yield f"{'read':10}" + "".join(f"{name:>17}" for name in (*ways, "do_bench", "zero_() adds"))
    for mib in (0, 1, 16, 64, 112, 256, 1024):
        call = reading(mib)
        times = [after(flush, call, device) for flush in ways.values()]
        times.append(do_bench(call, rep=200, return_mode="median") * 1e-3)
        times.append(times[1] - times[2])
        yield f"{mib:>4} MiB  " + "".join(f"{seconds * 1e6:>14.2f} us" for seconds in times)


# --8<-- [start:counters]
COUNTERS = ("dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum")


def launch(device: torch.device) -> None:
    """What ncu watches: the kernel on 64 MiB, after each flush."""
    call, ways = reading(64), flushes(torch.empty(2**26, dtype=torch.int32, device=device))
    call()
    for flush in ways.values():
        flush()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        call()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def counted(device: torch.device) -> Iterator[str]:
    """A line for each flush: what the memory read and wrote while the kernel on 64 MiB ran."""
    itself = [sys.executable, "-m", "snippets.validation.timing_flush", "--launch"]
    found = ask(["--cache-control", "none", *itself], COUNTERS)
    for name, one in zip(flushes(torch.empty(0)), found, strict=True):
        read, written, seconds = (one.counters[counter] for counter in COUNTERS)
        yield f"{name:24}{read / 1e6:8.2f} MB read{written / 1e6:8.2f} MB written{seconds * 1e6:8.2f} us"


# --8<-- [end:counters]


def main(arguments: Sequence[str] = ()) -> None:
    """Print the times, and what ncu counted."""
    if not torch.cuda.is_available():
        print("an L2 flush: expected a GPU, found none")
        return
    device = torch.device("cuda")
    if "--launch" in arguments:
        launch(device)
        return
    for section, lines in (("times", table), ("counters", counted)):
        print(f"==== {section}")
        try:
            print(*lines(device), sep="\n")
        except RuntimeError as error:  # no ncu, or none that may count
            print(error)


if __name__ == "__main__":
    main(sys.argv[1:])

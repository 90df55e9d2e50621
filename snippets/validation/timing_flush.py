"""What a benchmark's flush of the L2 cache leaves behind, and what the call after it pays for that.

Run `python -m snippets.validation.timing_flush` on a GPU.
"""

from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from snippets.validation.roofline import stream
from snippets.validation.timing import Call, DeviceTimer


# --8<-- [start:flushes]
def flushes(filler: Tensor) -> dict[str, Callable[[], object]]:
    """Ways to empty an L2 cache, given int32 that it cannot hold."""
    return {
        "none": lambda: None,
        "zero_()": filler.zero_,  # leaves the L2 full of lines that memory does not have yet
        "a read": filler.max,
        "zero_(), then a read": lambda: (filler.zero_(), filler.max()),
    }


# --8<-- [end:flushes]


# --8<-- [start:after]
def after(flush: Callable[[], object], call: Call, device: torch.device) -> float:
    """Seconds that the GPU needs for a call, from just after a flush: the median of 50."""
    timer = DeviceTimer(device, cold=False)
    return median(timer.sample(call, refresh=flush) for _ in range(50))


# --8<-- [end:after]


def main() -> None:
    """Print a line for each size: a kernel that only reads, after each flush and in do_bench."""
    if not torch.cuda.is_available():
        print("an L2 flush: expected a GPU, found none")
        return
    from triton.testing import do_bench

    device = torch.device("cuda")
    ways = flushes(torch.empty(2**26, dtype=torch.int32, device=device))
    print(f"{'MiB read':>10}" + "".join(f"{name:>22}" for name in (*ways, "do_bench")))
    for mib in (0, 1, 16, 64, 112, 256, 1024):
        read = torch.randn(max(mib * 2**19, 1), device=device).bfloat16()
        out = torch.empty(2**20, dtype=torch.bfloat16, device=device)
        call: Call = lambda: stream("read", read, read, out, 4096, 8)  # noqa: B023, E731
        times = [after(flush, call, device) for flush in ways.values()]
        times.append(do_bench(call, rep=200, return_mode="median") * 1e-3)
        print(f"{mib:>10}" + "".join(f"{seconds * 1e6:>19.2f} us" for seconds in times))


if __name__ == "__main__":
    main()

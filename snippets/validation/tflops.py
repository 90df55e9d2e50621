"""One matmul, many TFLOP/s: what the data, the load and the timer do to the same benchmark.

Run `python -m snippets.validation.tflops`; it takes two minutes on an H100. A CPU has one timer and small matrices.
"""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import torch
from torch import Tensor

from snippets.validation.timing import Call, DeviceTimer, burst, seconds_per_call, sustained

# --8<-- [start:data]
DATA: dict[str, Callable[[int, torch.device], Tensor]] = {
    "zeros": lambda size, device: torch.zeros(size, size, device=device),
    "integers from -2 to 2": lambda size, device: torch.randint(-2, 3, (size, size), device=device).float(),
    "normal": lambda size, device: torch.randn(size, size, device=device),
}
# --8<-- [end:data]


# --8<-- [start:timers]
def one_by_one(call: Call) -> float:
    """A pair of events around each call, and a wait after it."""
    return median(between_events(call, calls=1) for _ in range(100))


def between_events(call: Call, calls: int) -> float:
    """Seconds per call between two events, with so many calls between them."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3 / calls


def timers(device: torch.device) -> dict[str, Callable[[Call], float]]:
    """Ways to time a call, in seconds per call; several seconds of work for each, so that clock and power show."""
    if device.type == "cpu":
        return {"wall clock": lambda call: seconds_per_call(call, device)}
    from triton.testing import do_bench, do_bench_cudagraph

    alone = DeviceTimer(device)
    return {
        "events around each call": one_by_one,
        "events around 100 calls": lambda call: between_events(call, 100),
        "do_bench": lambda call: do_bench(call, rep=500, return_mode="median") * 1e-3,
        "do_bench_cudagraph": lambda call: do_bench_cudagraph(call, rep=500, return_mode="median") * 1e-3,
        "this site: one call, cold": lambda call: median(alone.sample(call) for _ in range(100)),
        "this site: burst": lambda call: median(burst(call, device, 10) for _ in range(20)),
        "this site: sustained": lambda call: sustained(call, device),
    }


# --8<-- [end:timers]


# --8<-- [start:watched]
@contextmanager
def watched() -> Iterator[dict[str, float]]:
    """Clock (MHz) and power (W) of the first GPU meanwhile: the medians of readings every 20 ms."""
    found: dict[str, float] = {}
    query = "--query-gpu=clocks.sm,power.draw.instant"
    command = ["nvidia-smi", "--id=0", query, "--format=csv,noheader,nounits", "--loop-ms=20"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as smi:
        try:
            yield found
        finally:
            smi.terminate()
            readings = [line.split(", ") for line in smi.communicate()[0].splitlines()]
    whole = [[float(number) for number in reading] for reading in readings if len(reading) == 2]
    if whole:
        found["MHz"], found["W"] = (median(column) for column in zip(*whole, strict=True))


# --8<-- [end:watched]


def main() -> None:
    """Print a table for each size: TFLOP/s, and the GPU's clock and power meanwhile."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    for size in (4096, 8192) if device.type == "cuda" else (512,):
        print(f"==== {size}")
        for name, made in DATA.items():
            a, b = (made(size, device).to(dtype) for _ in range(2))
            out = torch.empty_like(a)
            for timer, seconds in timers(device).items():
                print(f"{name:22} {timer:26}", line(lambda: torch.mm(a, b, out=out), seconds, 2 * size**3, device))


def line(call: Call, seconds: Callable[[Call], float], flops: int, device: torch.device) -> str:
    """What one timer says of a call, and on a GPU its clock and power meanwhile."""
    seconds(call)  # compiles, allocates, warms up
    if device.type == "cpu":
        return f"{flops / seconds(call) / 1e12:6.2f} TFLOP/s"
    with watched() as gpu:
        rate = flops / seconds(call) / 1e12
    return f"{rate:6.1f} TFLOP/s {gpu.get('MHz', 0):6.0f} MHz {gpu.get('W', 0):5.0f} W"


if __name__ == "__main__":
    main()

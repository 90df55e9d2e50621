"""One matmul, many TFLOP/s: what the data, the load and the timer do to the same benchmark.

Run `python -m snippets.validation.tflops`; it takes two minutes on an H100. A CPU has one timer and small matrices.
"""

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import Tensor

from snippets.validation.tflops_watch import Watch
from snippets.validation.timing import Call, measure

# --8<-- [start:data]
DATA: dict[str, Callable[[int, torch.device], Tensor]] = {
    "zeros": lambda size, device: torch.zeros(size, size, device=device),
    "integers": lambda size, device: torch.randint(-2, 3, (size, size), device=device).float(),
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
    """Ways to time a call, in seconds per call."""
    if device.type == "cpu":
        return {"this site: calls": partial(by_mode, device, "calls")}
    from triton.testing import do_bench, do_bench_cudagraph

    return {
        "events around each call": one_by_one,
        "events around 100 calls": partial(between_events, calls=100),
        "do_bench": lambda call: do_bench(call, rep=1000, return_mode="median") * 1e-3,
        "do_bench_cudagraph": lambda call: do_bench_cudagraph(call, rep=1000, return_mode="median") * 1e-3,
        "this site: device": partial(by_mode, device, "device"),
        "this site: burst": partial(by_mode, device, "burst"),
        "this site: sustained": partial(by_mode, device, "sustained"),
    }


def by_mode(device: torch.device, mode: str, call: Call) -> float:
    return measure({"": call}, device, mode, rounds=3 if mode == "sustained" else 30)[""].p50


# --8<-- [end:timers]


def main() -> None:
    """Print two tables for each size, a line for each timer: TFLOP/s, and the GPU's clock and power meanwhile."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    watch = Watch() if device.type == "cuda" else None
    for size in (4096, 8192) if watch else (512,):
        rates: dict[str, list[str]] = {name: [] for name in ("", *timers(device))}
        loads: dict[str, list[str]] = {name: [] for name in ("", *timers(device))}
        for data, made in DATA.items():
            a, b = (made(size, device).to(torch.bfloat16 if watch else torch.float32) for _ in range(2))
            call = partial(torch.mm, a, b, out=torch.empty_like(a))
            rates[""].append(data), loads[""].append(data)
            for name, seconds in timers(device).items():
                time.sleep(1.0)  # the chip cools: no timer meets the load of the one before
                began = time.perf_counter()
                rates[name].append(f"{2 * size**3 / seconds(call) / 1e12:.1f} TFLOP/s")
                loads[name].append(watch.since(began) if watch else "")
        show(f"{size}", rates)
        if watch:
            show(f"{size}, clock and power", loads)


def show(section: str, lines: dict[str, list[str]]) -> None:
    print(f"==== {section}")
    print("\n".join(f"{name:24}" + "".join(f"{cell:>24}" for cell in cells) for name, cells in lines.items()))


if __name__ == "__main__":
    main()

"""Two versions of a softmax under three timers: this site's, PyTorch's and Triton's.

Run `python -m snippets.validation.timing_your_op`.
"""

from collections.abc import Callable

import torch
import torch.utils.benchmark
from torch import Tensor

from snippets.validation.timing import Call, measure


# --8<-- [start:versions]
def written_out(x: torch.Tensor) -> torch.Tensor:
    exps = torch.exp(x - x.amax(-1, keepdim=True))
    return exps / exps.sum(-1, keepdim=True)


def fused(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, dim=-1)


# --8<-- [end:versions]


def two_versions() -> None:
    """Time both side by side, as the page does."""
    # --8<-- [start:use]
    x = torch.randn(64, 1024, device="cuda" if torch.cuda.is_available() else "cpu")

    calls = {"written_out": lambda: written_out(x), "fused": lambda: fused(x)}
    for name, time in measure(calls, x.device, mode="device" if x.is_cuda else "calls").items():
        print(f"{name}: {time.p50 * 1e6:.1f} us, most between {time.p20 * 1e6:.1f} us and {time.p80 * 1e6:.1f} us")
    # --8<-- [end:use]


# --8<-- [start:others]
def benchmark(call: Call) -> float:
    """PyTorch's timer: the host's clock around many calls in a row. Unless told, it takes one thread on a CPU."""
    timer = torch.utils.benchmark.Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=0.2).median


def do_bench(call: Call) -> float:
    """Triton's timer: two events on the GPU around one call with a cold cache. Unless told, it returns a mean."""
    from triton.testing import do_bench

    return do_bench(call, return_mode="median") * 1e-3


# --8<-- [end:others]


def three_timers(x: Tensor) -> None:
    """Print a line for each timer, with the microseconds that it finds for each version."""
    calls = {"written_out": lambda: written_out(x), "fused": lambda: fused(x)}

    def measured(mode: str) -> Callable[[], list[float]]:
        return lambda: [timing.p50 for timing in measure(calls, x.device, mode).values()]

    timers: dict[str, tuple[bool, Callable[[], list[float]]]] = {
        'measure(mode="device")': (True, measured("device")),
        "do_bench": (True, lambda: [do_bench(call) for call in calls.values()]),
        'measure(mode="calls")': (False, measured("calls")),
        "benchmark.Timer": (False, lambda: [benchmark(call) for call in calls.values()]),
    }
    print(f"{' x '.join(map(str, x.shape))}, {str(x.dtype).removeprefix('torch.')}")
    print(f"{'':24}" + "".join(f"{name:>16}" for name in calls))
    for name, (needs_gpu, times) in timers.items():
        possible = x.is_cuda or not needs_gpu
        cells = [f"{seconds * 1e6:.1f} us" for seconds in times()] if possible else ["needs a GPU"] * len(calls)
        print(f"{name:24}" + "".join(f"{cell:>16}" for cell in cells))


def main() -> None:
    """Print the times of both versions, then what each timer says of them: on a GPU small and large."""
    print("==== two versions")
    two_versions()
    print("==== three timers")
    shapes = [(64, 1024), (32768, 4096)] if torch.cuda.is_available() else [(64, 1024)]
    for shape in shapes:
        three_timers(torch.randn(shape, device="cuda" if torch.cuda.is_available() else "cpu"))


if __name__ == "__main__":
    main()

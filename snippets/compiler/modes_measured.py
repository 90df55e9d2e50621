"""One workload compiled in one mode: its time and memory beside eager's, and what the compiler tried."""

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters

from snippets.compiler.modes_options import compiled
from snippets.compiler.modes_workloads import WORKLOADS, make
from snippets.validation.timing import measure, synchronize

Call = Callable[[], Any]
Row = dict[str, Any]  # what was measured of one workload in one mode


# --8<-- [start:measured]
@torch.no_grad()
def measured(workload: str, mode: str, device: torch.device, dtype: torch.dtype) -> Row:
    """Compile a workload in a mode, and time it beside eager; all seconds, all bytes."""
    torch.manual_seed(0)
    module, inputs = make(WORKLOADS[workload], device, dtype)
    eager = partial(module, *inputs)
    exact = eager()
    synchronize(device)
    base = reserved(device)  # weights, inputs, the libraries' workspace
    used = {"eager": memory(eager, device, base)}

    fast = partial(compiled(module, mode), *inputs)
    tried: list[Row] = []
    with search_heard(tried):
        first = seconds(fast, device)
    recorded = sum(seconds(fast, device) for _ in range(2))  # a CUDA graph: the second call records, the third replays
    close(fast(), exact)
    timings = measure({"eager": eager, mode: fast}, device, "calls", rounds=7)
    used[mode] = memory(fast, device, base)
    return {
        "workload": workload,
        "mode": mode,
        "compile": first + recorded,
        "time": {name: timing.p50 for name, timing in timings.items()},
        "peak": {name: peak for name, (peak, _) in used.items()},
        "kept": {name: kept for name, (_, kept) in used.items()},
        "tried": tried,
        "settings": launch_settings(),
        "steps": counters["inductor"]["coordesc_tuning_bench"],  # launches that coordinate descent timed
    }


def seconds(call: Call, device: torch.device) -> float:
    """Of one call, by the host's clock."""
    began = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - began


def reserved(device: torch.device) -> int:
    """Bytes that PyTorch holds on the GPU and cannot give back now."""
    gc.collect()
    if device.type != "cuda":
        return 0
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(device)


def memory(call: Call, device: torch.device, base: int) -> tuple[int | None, int | None]:
    """Bytes that PyTorch holds at a call's peak, and still holds when its result is gone, beyond `base`.

    What a CUDA graph works in is not given back between calls, so it counts as kept.
    """
    if device.type != "cuda":
        return None, None
    reserved(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_reserved(device)
    return peak - base, reserved(device) - base


# --8<-- [end:measured]
def close(result: object, exact: object) -> None:
    """Both the same, up to the rounding of some layers; tests/benchmarks/compiler/modes.py looks closer."""
    pairs = [(result, exact)] if isinstance(result, Tensor) else zip(result, exact, strict=True)  # type: ignore[call-overload]
    for one, other in pairs:
        error = (one.float() - other.float()).norm() / other.float().norm()
        if not error < 0.05:
            raise RuntimeError(f"the compiled result is off by {error:.2%}")


@contextlib.contextmanager
def search_heard(found: list[Row]) -> Iterator[None]:
    """While it lasts, notes what max-autotune finds for each product: how many choices, and the best one's time."""
    from torch._inductor.select_algorithm import add_feedback_saver, clear_feedback_savers

    def hear(timings: Mapping[Any, float], name: str, nodes: list, *_: object) -> None:
        if not timings:
            return
        best = min(timings, key=timings.__getitem__)
        library = [choice for choice in timings if is_library(choice)]
        sizes = [[int(size) for size in node.get_size()] for node in nodes]
        found.append(
            {
                "product": name,
                "sizes": [size for size in sizes if len(size) > 1][-2:],  # a bias has one
                "choices": len(timings),
                "library": min((timings[choice] for choice in library), default=float("inf")) * 1e-3,
                "best": timings[best] * 1e-3,
                "winner": "library" if best in library else "Triton",
            }
        )

    add_feedback_saver(hear)
    try:
        yield
    finally:
        clear_feedback_savers()


def launch_settings() -> list[str]:
    """How each Triton kernel that Inductor has generated in this process is launched: block sizes, warps, stages."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    kernels = [each for each in gc.get_objects() if issubclass(type(each), CachingAutotuner)]  # asks no object
    chosen = [launcher.config for kernel in kernels for launcher in kernel.launchers]
    return sorted({f"{settings.kwargs} warps {settings.num_warps} stages {settings.num_stages}" for settings in chosen})


def is_library(choice: object) -> bool:
    """Whether a choice of Inductor's is an operation of PyTorch's rather than a template of its own."""
    return type(choice).__name__ == "ExternKernelCaller"

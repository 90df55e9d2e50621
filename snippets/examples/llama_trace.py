"""GPU time of a step by class of kernel."""

from collections.abc import Callable

import torch

# --8<-- [start:trace]
CLASSES = {  # of kernels, by what their names contain; the first that fits
    "everything else": ("triton_",),  # Inductor's, which are named after all that they fuse
    "attention": ("flash", "fmha", "sdpa", "attention", "cudnn"),
    "optimizer": ("adam", "multi_tensor"),
    "products": ("gemm", "nvjet", "cutlass", "splitk"),
}


def milliseconds(step: Callable[[], object]) -> tuple[dict[str, float], dict[str, set[str]]]:
    """GPU time of one call by class of kernel, and the names of attention's kernels."""
    from torch.profiler import ProfilerActivity, profile

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as trace:
        step()
        torch.cuda.synchronize()
    times, names = dict.fromkeys(CLASSES, 0.0), {}
    for event in trace.events():
        if event.device_type.name == "CUDA":
            low = event.name.lower()
            kind = next((k for k, parts in CLASSES.items() if any(p in low for p in parts)), "everything else")
            times[kind] += event.time_range.elapsed_us() / 1e3
            names.setdefault(kind, set()).add(event.name)
    return times, names


# --8<-- [end:trace]

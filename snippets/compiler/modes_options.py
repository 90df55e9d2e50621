"""Each mode of torch.compile as the options that it sets, and options that no mode sets."""

from collections.abc import Callable
from typing import Any

import torch
import torch._inductor

# --8<-- [start:modes]
MODES: dict[str, dict[str, Any]] = {
    name: torch._inductor.list_mode_options(name)
    for name in ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
} | {"coordinate-descent": {"coordinate_descent_tuning": True}}

OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {  # each at the workload that gives it something to do
    "combo-kernels": ("norms", {"combo_kernels": True}),
    "no-epilogue-fusion": ("mlp", MODES["max-autotune-no-cudagraphs"] | {"epilogue_fusion": False}),
    "freezing": ("convolution", {"freezing": True}),
    "cpp-wrapper": ("decode", {"cpp_wrapper": True}),
}


def compiled(function: Callable, mode: str) -> Callable:
    """A mode is a set of options, and nothing else."""
    options = MODES[mode] if mode in MODES else OPTIONS[mode][1]
    return torch.compile(function, fullgraph=True, dynamic=False, options=dict(options))


# --8<-- [end:modes]

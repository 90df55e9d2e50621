"""What is written down of an experiment: shapes, errors and times, and what else they may depend on."""

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime

import torch
import triton

from snippets.notebooks.triton_optimization_experiment import Experiment

# paths are not shown: they are the machine's own
CHANGES = (
    "TORCHINDUCTOR_MAX_AUTOTUNE",
    "TORCHINDUCTOR_COORDINATE_DESCENT_TUNING",
    "TORCH_LOGS",
    "TRITON_INTERPRET",
    "OMP_NUM_THREADS",
)


def measured(experiment: Experiment, mode: str, agreements: Mapping, timings: Mapping) -> dict:
    """What was measured: shapes, errors, times."""
    return {
        "experiment": experiment.name,
        "date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "inputs": {name: {"shape": list(t.shape), "dtype": str(t.dtype)[6:]} for name, t in experiment.inputs.items()},
        "timed_as": mode,
        "seconds": {name: asdict(timing) for name, timing in timings.items()},
        "errors": {name: {"error": one.error, "bound": one.bound} for name, one in agreements.items()},
        "not_timed": [] if mode == "device" else list(experiment.ours),
    }


def environment(device: torch.device) -> dict:
    """What the same experiment may give other results with."""
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return {
        "machine": machine or platform.machine(),
        "device": device.type,
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__},
        "variables": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(CHANGES)},
    }

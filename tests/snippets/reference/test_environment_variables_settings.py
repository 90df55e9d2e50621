"""Each option and each variable exists in the installed version."""

import re
from pathlib import Path

import pytest
import torch
import triton

from snippets.reference.environment_variables_settings import (
    INDUCTOR,
    MODULES,
    OPTIONS,
    SETTINGS,
    import_options,
    option,
)

ENTRIES = [setting for group in SETTINGS.values() for setting in group]
VARIABLES = {setting.variable.partition("=")[0]: setting.where for setting in ENTRIES if setting.variable}
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
LATER = {  # options, and the first version that has them
    f"{INDUCTOR}.epilogue_fusion_user_defined_triton_kernel": (2, 12),
    f"{INDUCTOR}.epilogue_fusion_with_atomic_add": (2, 13),
}
NCCL, RECORDER = (
    f"torch/include/torch/csrc/distributed/c10d/{name}.hpp" for name in ("ProcessGroupNCCL", "FlightRecorder")
)
OF_RANKS = {  # variables of several ranks, which their own pages explain, and the file that reads each
    "TORCH_COMPILER_COLLECTIVES": "torch/_dynamo/config.py",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "torch/distributed/elastic/rendezvous/dynamic_rendezvous.py",
    "TORCH_DISTRIBUTED_DEBUG": "torch/include/torch/csrc/distributed/c10d/debug.h",
    "TORCH_FR_BUFFER_SIZE": RECORDER,
    "TORCH_FR_DUMP_TEMP_FILE": "torch/lib/libtorch_cpu.so",
    "TORCH_NCCL_BLOCKING_WAIT": NCCL,
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "torch/lib/libtorch_cpu.so",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": NCCL,
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": NCCL,
    "TORCH_NCCL_NAN_CHECK": NCCL,
    "TORCH_NCCL_TRACE_BUFFER_SIZE": RECORDER,
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": NCCL,
}

import_options()


@pytest.mark.parametrize("path", OPTIONS)
def test_an_option_exists_in_the_installed_torch(path):
    found = option(path) != "not in this version"
    assert found == (LATER.get(path, (2, 11)) <= VERSION)


def read(file: str) -> bytes:
    """A file of the installed torch or triton; empty where this build has none."""
    package, _, below = file.partition("/")
    folder = Path({"torch": torch, "triton": triton}[package].__file__).parent
    path = folder / below
    return path.read_bytes() if path.exists() else b""


@pytest.mark.parametrize("variable", VARIABLES | OF_RANKS)
def test_a_variable_is_read_by_the_installed_version(variable):
    where = (VARIABLES | OF_RANKS)[variable]
    if where in OPTIONS:
        module = next(module for module in MODULES if where.startswith(f"{module}."))
        where = module.replace(".", "/") + ".py"
    content = read(where)
    if not content and "cuda" in where and not torch.version.cuda:
        pytest.skip(f"{where} is a part of builds with CUDA")
    whole = rf"{variable}(?<=\b{variable})\b"  # a pattern that begins with letters is found twenty times as fast
    assert re.search(whole.encode(), content), f"{where} does not read {variable}"

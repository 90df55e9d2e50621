"""A process that ends without an exception, and the two settings under which it says where."""

import ctypes
import os
import subprocess
import sys

import torch
from torch import Tensor


# --8<-- [start:crash]
@torch.library.custom_op("planted::reads_address_0", mutates_args=())
def reads_address_0(x: Tensor) -> Tensor:
    ctypes.string_at(0)
    return x.clone()


@reads_address_0.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def crash() -> None:
    """An error from C++ first, then a read where there is no memory."""
    try:
        torch.ones(3) @ torch.ones(4)
    except RuntimeError as error:
        print(next(line for line in str(error).splitlines() if "raised from" in line), flush=True)
    torch.compile(lambda x: reads_address_0(x.sin()), backend="eager")(torch.ones(4))


# --8<-- [end:crash]


def crashed() -> str:
    """How a process ends that calls `crash`, and what of its last words is about this file."""
    script = f"import runpy; runpy.run_path({__file__!r})['crash']()"
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", script],
        env=os.environ | {"TORCH_SHOW_CPP_STACKTRACES": "1"},
        capture_output=True,
        text=True,
    )
    told = [line for line in done.stderr.splitlines() if "Fatal" in line or "debugging_crash" in line]
    return "\n".join([*done.stdout.splitlines(), *told, f"status {done.returncode}"])

"""Save what the compiler made, load it elsewhere, and count what no cache had.

That a `custom_op` has another gradient no cache notices: see compile_time_cache.py.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor


# --8<-- [start:ship]
def warm_up(function: Callable[..., object], *inputs: Tensor, to: Path) -> None:
    """Where the image is made, on a GPU of the kind that will serve: compile, and keep what the compiler made."""
    torch.compile(function)(*inputs)
    artifacts = torch.compiler.save_cache_artifacts()
    if artifacts is None:
        raise RuntimeError("nothing was compiled")
    to.write_bytes(artifacts[0])


def unpack(path: Path) -> None:
    """Where the container starts, before the first compiled call: fill the caches. It never complains of a version."""
    if torch.compiler.load_cache_artifacts(path.read_bytes()) is None:
        raise RuntimeError(f"expected artifacts of the compiler, got something else: {path}")


def compiled_anew() -> int:
    """How many graphs no cache had. In a container that was to start warm this is 0, and a test should say so."""
    counts = torch._dynamo.utils.counters["aot_autograd"]
    return counts["autograd_cache_miss"] + counts["autograd_cache_bypass"]


# --8<-- [end:ship]

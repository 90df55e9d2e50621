"""Changes of a program that a cache may or may not notice. That of a `custom_op` is in compile_time_cache.py."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from unittest.mock import patch

import torch

# --8<-- [start:scene]
SOURCE = """
import torch

def gate(x, weight):
    hidden = x @ weight
    return LAST
"""
LAST = {
    "cuda": "torch.relu(hidden) * 2",
    "cpu": "torch.addmm(hidden, hidden, weight, alpha=2)",  # needs no C++
}


@dataclass(frozen=True)
class Scene:
    """A call of a compiled function, as it is after some change."""

    change: Callable[[str], str] = str  # of the source
    folder: str = "project"
    rows: int = 64
    dtype: torch.dtype = torch.float32
    seed: int = 0
    trained: bool = False
    setting: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext
    cache: str = "cache"


# --8<-- [end:scene]
@contextlib.contextmanager
def precision(value: str) -> Iterator[None]:
    """Set the precision of products. Setting it back by name leaves another state than the one before."""
    states = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    usual = [state.fp32_precision for state in states]
    torch.set_float32_matmul_precision(value)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")
        for state, before in zip(states, usual, strict=True):
            state.fp32_precision = before


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def other_gpu() -> contextlib.AbstractContextManager:
    """As if the machine said another name of its GPU, or of its kind of device."""
    from torch._inductor.codecache import CacheBase

    system = CacheBase.get_system()
    return patch.object(CacheBase, "get_system", lambda: system | {"device": {"name": "another"}})


def other_torch() -> contextlib.AbstractContextManager:
    """As if PyTorch's sources hashed to something else, as each version's do."""
    return patch("torch._inductor.codecache.torch_key", lambda: b"another version")


def own_pass() -> contextlib.AbstractContextManager:
    """A pass of ours over the graph, as a plain function: nobody can tell whether it is the same as last time."""
    return torch._inductor.config.patch(post_grad_custom_pre_pass=lambda graph: None)


# --8<-- [start:changes]
BASE = Scene()
CHANGES = {
    "nothing": BASE,
    "other values in the weights": replace(BASE, seed=1),
    "a comment, other line numbers": replace(BASE, change=lambda source: "# a comment\n" + source),
    "the file stands elsewhere": replace(BASE, folder="elsewhere"),
    "the cache folder is a copy": BASE,
    "the number of compile workers": replace(BASE, setting=lambda: torch._inductor.config.patch(compile_threads=2)),
    "a local variable is renamed": replace(BASE, change=lambda source: source.replace("hidden", "product")),
    "the function is renamed": replace(BASE, change=lambda source: source.replace("gate", "door")),
    "a constant in the source": replace(BASE, change=lambda source: source.replace("2", "3")),
    "another number of rows": replace(BASE, rows=96),
    "another dtype": replace(BASE, dtype=torch.bfloat16),
    "gradients are wanted": replace(BASE, trained=True),
    "an option of Inductor": replace(BASE, setting=lambda: torch._inductor.config.patch(epilogue_fusion=False)),
    "matmul precision 'high'": replace(BASE, setting=lambda: precision("high")),
    "'highest', which is the default": replace(BASE, setting=lambda: precision("highest")),
    "deterministic algorithms": replace(BASE, setting=deterministic),
    "another GPU (its name)": replace(BASE, setting=other_gpu),
    "another PyTorch (its key)": replace(BASE, setting=other_torch),
    "a pass of one's own": replace(BASE, setting=own_pass),
    "nothing, after all of these": BASE,
}
# --8<-- [end:changes]

"""What the caches answer at a function's first call after a change. The `custom_op` is in compile_time_cache.py."""

import contextlib
import importlib.util
import linecache
import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import torch

from snippets.compiler.compile_time_cache_changes import LAST, SOURCE, Scene
from snippets.validation.timing import synchronize


# --8<-- [start:outcome]
@dataclass(frozen=True)
class Outcome:
    """What the two caches of graphs said, and how long the first call took."""

    autograd: str
    inductor: str
    seconds: float


def outcome(scene: Scene, root: Path, device: str) -> Outcome:
    """Call a scene's function for the first time, with no more in memory than after the start of a process."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(scene.seed)
    function = next(value for name, value in vars(module(scene, root, device)).items() if name in ("gate", "door"))
    x = torch.randn(scene.rows, 64, device=device, dtype=scene.dtype)
    weight = torch.randn(64, 64, device=device, dtype=scene.dtype, requires_grad=scene.trained)
    with scene.setting(), caches_in(root / scene.cache):
        began = time.perf_counter()
        torch.compile(function, dynamic=False)(x, weight)
        synchronize(x.device)
        seconds = time.perf_counter() - began
    counters = torch._dynamo.utils.counters
    return Outcome(
        said(counters["aot_autograd"], "autograd_cache"), said(counters["inductor"], "fxgraph_cache"), seconds
    )


def caches_in(folder: Path) -> contextlib.AbstractContextManager:
    """All caches in this folder: Triton's is named, too, since a compile worker would stay with the first one."""
    return patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=str(folder), TRITON_CACHE_DIR=str(folder / "triton"))


def said(counts: Counter, name: str) -> str:
    """The answer of a cache: hit, miss or bypass; "not asked" where another had answered already."""
    return next((what for what in ("bypass", "miss", "hit") if counts[f"{name}_{what}"]), "not asked")


# --8<-- [end:outcome]
def module(scene: Scene, root: Path, device: str) -> ModuleType:
    """The scene's source as a module, written to its folder."""
    path = root / scene.folder / "layer.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(scene.change(SOURCE.replace("LAST", LAST[device])))
    spec = importlib.util.spec_from_file_location("layer", path)
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    linecache.clearcache()  # Dynamo reads the lines, and the file is not what it was
    return loaded

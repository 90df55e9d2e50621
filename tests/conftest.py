"""Settings that must stand before a test imports Triton or compiles anything, and scripts that run once."""

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

pytest_plugins = ["tests.kernels.cached", "tests.seconds", "tests.site.visited"]

ROOT = Path(__file__).parents[1]
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
HERE = "cuda" if torch.cuda.is_available() else "cpu"

if HERE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
for compiler in ("TORCHINDUCTOR", "TRITON"):  # a first torch.compile is slow; and the home folder plays no part
    os.environ.setdefault(f"{compiler}_CACHE_DIR", str(ROOT / ".cache" / compiler.removeprefix("TORCH").lower()))
if processes := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):  # each has a share of the cores, and so have its programs
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, CORES // int(processes))))
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


@pytest.fixture(scope="session")
def script(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., CompletedProcess[str]]:
    """`script(module, device)`: how `python -m module` ended, under the settings of captures.

    A script runs once for all tests that ask, whichever process of the run they are in: a page's command, a page's
    captured output and the snippet's own test mean the same run.
    """
    from filelock import FileLock  # comes with torch

    from tests.benchmarks import captures

    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder

    @functools.cache
    def finished(module: str, device: str = HERE) -> CompletedProcess[str]:
        kept = shared / f"{module}-{device}.json"
        with FileLock(f"{kept}.lock"):
            if not kept.exists():
                kept.write_text(json.dumps(vars(captures.finished(module, device))), encoding="utf-8")
        return CompletedProcess(**json.loads(kept.read_text(encoding="utf-8")))

    return finished

"""Do more compile workers make a cold start shorter? Where there are many kernels, and once the workers are there.

Run `python -m snippets.compiler.compile_time_workers`, on a GPU.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from snippets.compiler.compile_time_measured import ROOT, environment
from snippets.compiler.compile_time_start import inside
from snippets.validation.timing import synchronize


# --8<-- [start:functions]
def distinct(x: Tensor, kernels: int) -> list[Tensor]:
    """So many kernels, no two alike: softmax of the first 64 columns, of the first 128, of the first 192, ..."""
    return [F.softmax(x[:, : 64 * (1 + index)], dim=-1) for index in range(kernels)]


def alike(x: Tensor, kernels: int) -> list[Tensor]:
    """One kernel, launched so many times: a product stands before each softmax, so that none can be fused."""
    results = [x]
    for _ in range(kernels):
        results.append(F.softmax(results[-1] @ x, dim=-1))
    return results


# --8<-- [end:functions]
FUNCTIONS: dict[str, Callable[[Tensor, int], list[Tensor]]] = {"distinct": distinct, "alike": alike}


# --8<-- [start:measure]
def first_call(what: str, kernels: int, wait: bool) -> dict[str, float]:
    """Seconds of a first call, of those the ones for kernels, and how many kernels went to a worker.

    Args:
        wait: until the workers have started, before the clock does. Nobody does that in earnest.
    """
    from torch._inductor.async_compile import AsyncCompile, CodeCacheFuture

    compile_triton = AsyncCompile.triton
    by_worker: dict[str, bool] = {}  # by source

    def noted(self: AsyncCompile, name: str, source: str, **device: str) -> object:
        kernel = compile_triton(self, name, source, **device)
        by_worker[source] = isinstance(kernel, CodeCacheFuture)  # else it has just been compiled here
        return kernel

    x = torch.randn(64 * kernels, 64 * kernels, device="cuda")
    if wait:
        AsyncCompile.wait_pool_ready()
    with patch.object(AsyncCompile, "triton", noted):
        began = time.perf_counter()
        torch.compile(FUNCTIONS[what])(x, kernels)
        synchronize(x.device)
        seconds = time.perf_counter() - began
    found = {"first": seconds, "kernels": inside()[1]["kernels"]}
    return found | {"compiled": len(by_worker), "by workers": sum(by_worker.values())}


# --8<-- [end:measure]


def measured(what: str, kernels: int, wait: bool, **variables: str) -> dict[str, float]:
    """`first_call` in a new process, from an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "snippets.compiler.compile_time_workers", json.dumps([what, kernels, wait])]
        env = environment(cache, **variables)
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{what}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """One worker and many, with many kernels and with one."""
    if not torch.cuda.is_available():
        print("Worker processes compile Triton's kernels, not C++: without a GPU there is nothing to see here.")
        return
    from torch._inductor import config

    kernels = 32
    print("==== workers")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"{cores} cores; workers by default: {config.compile_threads}")
    print(f"{'kernels':<12} {'workers':<22} {'first call':>10} {'for kernels':>12} {'compiled by a worker':>22}")
    for what, name, wait, variables in (
        ("distinct", "1", False, {"TORCHINDUCTOR_COMPILE_THREADS": "1"}),
        ("distinct", "as they start", False, {}),
        ("distinct", "all there", True, {}),
        ("alike", "as they start", False, {}),
    ):
        found = measured(what, kernels, wait, **variables)
        share = f"{found['by workers']:.0f} of {found['compiled']:.0f}"
        print(f"{kernels} {what:<9} {name:<22} {found['first']:>8.2f} s {found['kernels']:>10.2f} s {share:>22}")


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps(first_call(*json.loads(sys.argv[1]))))
    else:
        main()

"""Start ranks with torchrun and hear rank 0; begin with memory that nothing holds; read the GPU's clock.

Without two GPUs, processes on the CPU use gloo.
"""

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from snippets.reference.communication import device, joined, slowest

GPU = torch.cuda.device_count() > 1
MIB, GIB = 2**20, 2**30


def among_ranks(work: Callable[[], object], backend: str = "") -> None:
    """What each process of torchrun does: join, work, and leave when no rank talks to another any more."""
    joined(backend)
    work()
    dist.barrier()
    dist.destroy_process_group()


def tell(measuring: Callable[[int, torch.device], Iterable[dict]]) -> None:
    """The first rank prints each part as soon as it is measured, as JSON on a line of its own."""
    for part in measuring(dist.get_rank(), device()):
        if not dist.get_rank():
            print(json.dumps(part), flush=True)


def lines(program: Sequence[str], ranks: int) -> Iterator[str]:
    """What rank 0 of a program prints, each line as soon as it is there. Who stops reading ends the ranks."""
    command = f"-m torch.distributed.run --standalone --nproc-per-node {ranks}".split()
    settings = {"OMP_NUM_THREADS": "1"} | dict(os.environ)
    call = [sys.executable, *command, *program]
    with subprocess.Popen(call, env=settings, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield from process.stdout or ()
        except BaseException:
            process.terminate()  # torchrun, which ends its ranks
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, call)


def told(module: str, ranks: int) -> Iterator[dict]:
    """The parts that rank 0 of a module tells."""
    return (json.loads(line) for line in lines(["-m", module], ranks) if line.startswith("{"))


def start(module: str, work: Callable[[], object], ranks: int, backend: str = "") -> None:
    """The `main` of a module whose rank 0 prints text: torchrun starts the module again, and then each rank works."""
    if "RANK" in os.environ:
        among_ranks(work, backend)
        return
    for line in lines(["-m", module], ranks):
        print(line, end="", flush=True)


LEFT = 64 * MIB  # what may remain of the case before


def nothing_left(held: Callable[[], int] | None = None, tries: int = 20, pause: float = 0.2) -> None:
    """Free what the case before holds, on all ranks, before the memory of the next one is measured.

    NCCL keeps the tensors of a collective that nobody waited for by its handle, such as DDP's buckets. It drops them at
    the next collective after its watchdog has seen the end of theirs, so this waits, and runs collectives.

    Raises:
        RuntimeError: on all ranks, if one of them still holds more than LEFT.
    """
    for _ in range(tries):
        gc.collect()
        if GPU:
            torch.cuda.synchronize()
            torch._C._cuda_clearCublasWorkspaces()
        (left,) = slowest([(held or allocated)()])  # a collective of all ranks, which get the same number
        if left <= LEFT:
            break
        time.sleep(pause)
    else:
        raise RuntimeError(f"expected at most {LEFT // MIB} MiB left of the case before, got {left / MIB:.0f} MiB")
    if GPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def synchronize() -> None:
    if GPU:
        torch.cuda.synchronize()


def allocated() -> int:
    return torch.cuda.memory_allocated() if GPU else 0


def nbytes(tensors: Iterable[Tensor | None]) -> int:
    """Of what this process has of them."""
    local = [t.to_local() if isinstance(t, DTensor) else t for t in tensors if t is not None]
    return sum(t.numel() * t.element_size() for t in local)


# --8<-- [start:clock]
def moment() -> Callable[[], Any]:
    """Now, by the GPU's clock and without waiting for it."""
    if not GPU:
        now = time.perf_counter()
        return lambda: now
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return lambda: event


def between(start: Callable[[], Any], end: Callable[[], Any]) -> float:
    """Seconds, once both have happened."""
    return start().elapsed_time(end()) / 1e3 if GPU else end() - start()


# --8<-- [end:clock]

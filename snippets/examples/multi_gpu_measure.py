"""Observe a training step among ranks: start them, begin with memory that nothing holds, time a step, read its trace.

`python -m snippets.examples.multi_gpu` measures with it. Without two GPUs, processes on the CPU use gloo.
"""

import gc
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile

from snippets.reference.communication import device, joined, slowest

GPU = torch.cuda.device_count() > 1
TRACED = 3 if GPU else 1  # steps
MIB, GIB = 2**20, 2**30


# ---- ranks ---------------------------------------------------------------------------------------------------------


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


# ---- memory and time -----------------------------------------------------------------------------------------------

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


# ---- a step's trace ------------------------------------------------------------------------------------------------


# --8<-- [start:exposed]
def union(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def total(intervals: Iterable[tuple[float, float]]) -> float:
    return sum(end - start for start, end in union(intervals))


def events_of(trace: str | Path) -> list[dict]:
    """Of a file that torch.profiler exported."""
    return json.loads(Path(trace).read_text())["traceEvents"]


MATMULS = ("gemm", "nvjet", "cutlass", "flash")  # in names of kernels; attention is among them


def parts(events: Iterable[dict]) -> dict[str, float]:
    """Milliseconds in which a GPU ran matmuls, other kernels, only NCCL ("exposed"), and nothing ("idle")."""
    kernels = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    spans = [(e["ts"], e["ts"] + e["dur"], e["name"]) for e in kernels]
    compute = [span for span in spans if not span[2].startswith("nccl")]
    busy, computing = total(span[:2] for span in spans), total(span[:2] for span in compute)
    matmuls = total(span[:2] for span in compute if any(word in span[2].lower() for word in MATMULS))
    found = {"matmuls": matmuls, "other": computing - matmuls, "exposed": busy - computing}
    idle = max(span[1] for span in spans) - min(span[0] for span in spans) - busy if spans else 0.0
    return {name: took / 1e3 for name, took in (found | {"idle": idle}).items()}


# --8<-- [end:exposed]


# --8<-- [start:moved]
WIDTHS = {"float": 4, "c10::BFloat16": 2, "double": 8, "unsigned char": 1}  # fp8 travels as the last one
COLLECTIVES = {  # operation, and the argument whose shape counts
    "c10d::allreduce_": ("all-reduce", 0),
    "c10d::_allgather_base_": ("all-gather", 0),
    "c10d::_reduce_scatter_base_": ("reduce-scatter", 1),
    "_c10d_functional::all_reduce": ("all-reduce", 0),
    "_c10d_functional::all_gather_into_tensor": ("all-gather", 0),
    "_c10d_functional::reduce_scatter_tensor": ("reduce-scatter", 0),
}


def collectives(events: Iterable[dict]) -> list[tuple[str, int]]:
    """Operation and bytes of the whole message for each collective, from a trace made with record_shapes."""
    calls, functional = [], -1.0
    for event in sorted((e for e in events if e.get("name") in COLLECTIVES), key=lambda e: e["ts"]):
        if event["name"] == "c10d::allreduce_" and event["ts"] < functional:
            continue  # the functional one, which is counted, has called it
        operation, at = COLLECTIVES[event["name"]]
        (shape, *_), kind = nested(event["args"]["Input Dims"][at]), event["args"]["Input type"][at]
        parts = int(event["args"]["Concrete Inputs"][1]) if event["name"].endswith("all_gather_into_tensor") else 1
        if event["name"] == "_c10d_functional::all_reduce":
            functional = event["ts"] + event["dur"]
        calls.append((operation, math.prod(shape) * parts * WIDTHS.get(kind, 4)))  # a list's dtype is not in the trace
    return calls


def nested(shape: list) -> list[list[int]]:
    return shape if shape and isinstance(shape[0], list) else [shape]


# --8<-- [end:moved]


def traced(step: Callable[[], object], path: Path) -> dict:
    """Messages of one step; on a GPU, the parts of three more. The first process alone reads its traces."""

    def trace(activity: ProfilerActivity, steps: int) -> list[dict]:
        synchronize()
        dist.barrier()
        with profile(activities=[activity], record_shapes=activity == ProfilerActivity.CPU) as profiler:
            for _ in range(steps):
                step()
            synchronize()
        if dist.get_rank():
            return []
        profiler.export_chrome_trace(str(path))
        return events_of(path)

    found: dict = {"messages": collectives(trace(ProfilerActivity.CPU, 1))}
    if GPU:  # without CPU events, which slow the host down
        events = trace(ProfilerActivity.CUDA, TRACED)
        nccl = [e for e in events if e.get("cat") == "kernel" and e["name"].startswith("nccl")]
        found["communication"] = total((e["ts"], e["ts"] + e["dur"]) for e in nccl) / TRACED / 1e6
        found["exposed"] = parts(events)["exposed"] / TRACED / 1e3
        found["parts"] = {name: took / TRACED / 1e3 for name, took in parts(events).items()}
    return found

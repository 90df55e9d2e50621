"""A step's trace: the messages it sends, and the time in which a GPU runs only NCCL."""

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path

import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from snippets.examples.multi_gpu_ranks import GPU, synchronize

TRACED = 3 if GPU else 1  # steps


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

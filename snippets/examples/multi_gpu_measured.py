"""Each strategy's step, measured: its parts, its memory and its messages."""

import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor.parallel import loss_parallel

from snippets.examples.llama_causal import say_causal
from snippets.examples.llama_model import make_model
from snippets.examples.multi_gpu_bytes import EAGER, LENGTH, SIZES, STRATEGIES, shape_of
from snippets.examples.multi_gpu_ranks import (
    GIB,
    GPU,
    MIB,
    allocated,
    between,
    moment,
    nbytes,
    nothing_left,
    synchronize,
)
from snippets.examples.multi_gpu_strategies import tensor_parallel
from snippets.examples.multi_gpu_trace import traced
from snippets.reference.communication import OPERATIONS, Rates, sent
from snippets.reference.communication import measure as measured_rates

SWEEP = [2**k for k in (range(13, 32, 2) if GPU else range(6, 22, 5))]  # bytes: all messages are between them
WARM, STEPS = (3, 8) if GPU else (1, 1)


def names_for(gpus: int) -> list[str]:
    """What one GPU or more run. What is compiled runs on one and on two; on a CPU, nothing is."""
    every = STRATEGIES if GPU and gpus <= 2 else EAGER
    one = {name for name in every if name.startswith("one GPU")}
    return [name for name in every if name not in ({"FSDP2, large"} if gpus == 1 else one)]


# --8<-- [start:run]
def measure(name: str, rank: int, device: torch.device, folder: str) -> dict:
    strategy, n = STRATEGIES[name], dist.get_world_size()
    torch.manual_seed(0)
    before, began = allocated(), time.perf_counter()
    model = say_causal(make_model(strategy.sizes, device, torch.float32))
    batch = strategy.batch * (n if strategy.make is tensor_parallel else 1)  # all its GPUs work on the same tokens
    result: dict[str, Any] = {"shape": vars(shape_of(model, batch * LENGTH))}
    wrapped = strategy.make(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    torch.manual_seed(0 if strategy.make is tensor_parallel else 1 + rank)
    tokens = torch.randint(SIZES["vocab_size"], (batch, LENGTH), device=device)
    positions = torch.arange(LENGTH, device=device)[None]
    split = loss_parallel if strategy.make is tensor_parallel else nullcontext

    def step() -> list:
        marks = [moment()]
        with split():
            with torch.autocast(device.type, torch.bfloat16, enabled=strategy.autocast):
                loss = wrapped(input_ids=tokens, labels=tokens, position_ids=positions).loss
            marks.append(moment())
            loss.backward()
        marks.append(moment())
        result["gradients"] = nbytes(p.grad for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        return [*marks, moment()]

    for i in range(WARM):
        step()
        synchronize()
        if not i:
            result["first"] = time.perf_counter() - began
    if GPU:
        torch.cuda.reset_peak_memory_stats()
    marks = [step() for _ in range(STEPS)]
    synchronize()
    for part, (i, j) in {"forward": (0, 1), "backward": (1, 2), "update": (2, 3)}.items():
        result[part] = statistics.median(between(m[i], m[j]) for m in marks)
    result["step"] = between(marks[0][0], marks[-1][-1]) / STEPS
    result["peak"] = torch.cuda.max_memory_allocated() - before if GPU else 0
    result["parameters"] = nbytes(model.parameters())
    result["state"] = nbytes(t for s in optimizer.state.values() for t in s.values() if t.dim())
    result |= traced(step, Path(folder) / f"{rank}.json")
    return result


# --8<-- [end:run]


def measured(names: Sequence[str], rank: int, device: torch.device) -> Iterator[dict]:
    """Seconds of a collective by bytes; then each strategy that succeeds, or why it did not."""
    if dist.get_world_size() > 1:
        yield {"rates": measured_rates(OPERATIONS[:3], SWEEP, torch.float32)}
    with TemporaryDirectory() as folder:
        for name in names:
            began = time.perf_counter()
            try:
                nothing_left()
                part = {"runs": {name: measure(name, rank, device, folder)}}
            except RuntimeError as error:  # the others still run
                part = {"failed": {name: ". ".join(str(error).splitlines()[0].split(". ")[:2])}}
            torch._dynamo.reset()
            if not rank:
                print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
            yield part


def by_size(rates: Mapping[str, Mapping[str, float]]) -> Rates:
    """Rates that were written as JSON, whose keys are strings."""
    return {operation: {int(size): took for size, took in row.items()} for operation, row in rates.items()}


def unknown() -> dict[str, dict]:
    return {"rates": {}, "runs": {}, "failed": {}}


def add(found: dict[str, dict], part: Mapping[str, dict]) -> None:
    """What `measured` has given to what it gave before."""
    for kind, each in part.items():
        found[kind] |= by_size(each) if kind == "rates" else each


def say_runs(runs: dict, n: int) -> None:
    print("==== runs\nmeasured: a step, the peak of memory, what a GPU sends, the first step\n")
    for name, run in runs.items():
        size = sum(sent(*message, n) for message in run["messages"]) / 1e9
        shown = f"{run['step'] * 1e3:6.1f} ms {run['peak'] / GIB:5.1f} GiB {size:5.2f} GB {run['first']:4.0f} s"
        print(f"{name + ':':27} {shown}")


def say_parts(runs: dict) -> None:
    print("==== parts\nms of a traced step, by what the GPU runs; the step without a trace\n")
    print(f"{'':26} {'matmuls':>8} {'other':>8} {'exposed':>8} {'idle':>8} {'sum':>8} {'step':>8}")
    for name, run in runs.items():
        cells = (*run["parts"].values(), sum(run["parts"].values()), run["step"])
        print(f"{name:26} {' '.join(f'{cell * 1e3:8.1f}' for cell in cells)}")


def say_rates(rates: Rates, n: int) -> None:
    print(f"==== rates\nGB/s that each of {n} GPUs sends, by message size\n")
    print(f"{'MiB':>16} {' '.join(f'{size / MIB:8.4g}' for size in SWEEP)}")
    for operation in OPERATIONS[:3]:
        cells = (f"{sent(operation, size, n) / rates[operation][size] / 1e9:8.1f}" for size in SWEEP)
        print(f"{operation:16} {' '.join(cells)}")

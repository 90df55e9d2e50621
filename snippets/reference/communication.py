"""How long a collective takes: measured by message size, and predicted from what was measured.

Run `torchrun --nproc-per-node 2 communication.py`, or `python -m snippets.reference.communication`, which starts it
for 2, 4, ... GPUs. Without two GPUs, two processes on the CPU use gloo.
"""

import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

KiB, MiB = 2**10, 2**20
OPERATIONS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send/recv")
SIZES = (8 * KiB, *(size * MiB for size in (1, 4, 16, 64, 256, 1024)))
BETWEEN = (2 * MiB, 25 * MiB, 400 * MiB)  # predicted from SIZES, then measured
SMALL, SMALL_BETWEEN = (8 * KiB, 64 * KiB, MiB), (32 * KiB, 512 * KiB)  # on a CPU
Rates = Mapping[str, Mapping[int, float]]  # seconds of one call, by operation and bytes


# --8<-- [start:predict]
def sent(operation: str, nbytes: float, ranks: int) -> float:
    """Bytes that leave each rank; `nbytes`: the whole tensor, before a reduction or after a gather."""
    passes = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1, "all-to-all": 1}
    return nbytes * passes[operation] * (ranks - 1) / ranks if operation in passes else float(nbytes)


def seconds(operation: str, nbytes: float, rates: Rates) -> float:
    """The time of one call, on a straight line between the nearest sizes of `measure()`."""
    known = rates[operation]
    sizes = sorted(known)
    if not sizes[0] <= nbytes <= sizes[-1]:
        raise ValueError(f"{operation}: measured from {sizes[0]} to {sizes[-1]} bytes, got {nbytes:.0f}")
    upper = max(1, bisect_left(sizes, nbytes))
    low, high = sizes[upper - 1 : upper + 1]
    return known[low] + (known[high] - known[low]) * (nbytes - low) / (high - low)


# --8<-- [end:predict]


# --8<-- [start:gradients]
def gradient_seconds(model: nn.Module, bucket: int = 25 * MiB) -> float:
    """All of DDP's all-reduces in one step, with nothing to overlap; DDP sends buckets of 25 MiB."""
    rates = measure(["all-reduce"])
    nbytes = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    return nbytes / bucket * seconds("all-reduce", bucket, rates)


# --8<-- [end:gradients]


# ---- measuring -----------------------------------------------------------------------------------------------------


def device() -> torch.device:
    """Where this process's tensors are."""
    on_gpu = dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def call_of(operation: str, nbytes: int, dtype: torch.dtype) -> Callable[[], object]:
    """One collective among all ranks, on buffers made before."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    part = torch.zeros(-(-nbytes // dtype.itemsize // ranks), dtype=dtype, device=device())
    whole = part.new_zeros(part.numel() * ranks)
    other = torch.zeros_like(whole) if operation in ("all-to-all", "send/recv") else whole

    def exchange() -> None:
        """Each rank sends to the next, and receives from the one before."""
        both = (
            dist.P2POp(dist.isend, whole, (rank + 1) % ranks),
            dist.P2POp(dist.irecv, other, (rank - 1) % ranks),
        )
        for work in dist.batch_isend_irecv(list(both)):
            work.wait()

    return {
        "all-reduce": lambda: dist.all_reduce(whole),
        "all-gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce-scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "all-to-all": lambda: dist.all_to_all_single(other, whole),
        "send/recv": exchange,
    }[operation]


def wait() -> None:
    """Until this rank's GPU is done."""
    if device().type == "cuda":
        torch.cuda.synchronize()


def clocked(call: Callable[[], object], calls: int) -> float:
    """Seconds per call of `calls` that are enqueued back to back after a barrier; a GPU's from CUDA events."""
    dist.barrier()
    wait()
    if device().type == "cpu":
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - start) / calls
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(calls):
        call()
    last.record()
    wait()
    return first.elapsed_time(last) / 1e3 / calls


def alone(call: Callable[[], object]) -> float:
    """Seconds of the host, from one call to the end of a synchronisation."""
    dist.barrier()
    wait()
    start = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - start


def slowest(values: Sequence[float]) -> list[float]:
    """Each value's maximum over all ranks."""
    found = torch.tensor(values, dtype=torch.float64, device=device())
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return found.tolist()


def measure(
    operations: Iterable[str] = OPERATIONS,
    sizes: Sequence[int] = SIZES,
    dtype: torch.dtype = torch.bfloat16,
    queued: bool = True,
) -> dict[str, dict[int, float]]:
    """Seconds of one call among all ranks, by operation and bytes. All ranks call this, and get the same.

    `queued`: of many calls, back to back; else of one call with a synchronisation. Each is a median of the slowest
    rank.
    """
    found: dict[str, dict[int, float]] = {}
    for operation in operations:
        times = []
        for size in sizes:
            call = call_of(operation, size, dtype)
            calls = max(5, min(100, 2**31 // size)) if device().type == "cuda" else 5
            for _ in range(3):  # the first call connects the ranks
                call()
            each = [clocked(call, calls) for _ in range(5)] if queued else [alone(call) for _ in range(15)]
            times.append(statistics.median(each))
        found[operation] = dict(zip(sizes, slowest(times), strict=True))
    return found


# ---- the record ----------------------------------------------------------------------------------------------------


def rows(sizes: Sequence[int], between: Sequence[int]) -> list[dict]:
    """All that is measured among the ranks of this group, as the record has it."""
    bf16, found = torch.bfloat16, []
    for how, dtype, at, queued in (
        ("queued", bf16, sizes, True),
        ("queued", torch.float32, sizes, True),
        ("alone", bf16, sizes, False),
        ("between", bf16, between, True),
    ):
        named = {"ranks": dist.get_world_size(), "dtype": str(dtype).removeprefix("torch."), "how": how}
        rates = measure(OPERATIONS, at, dtype, queued)
        for operation, took in rates.items():
            found.append(named | {"operation": operation, "seconds": {size: round(took[size], 9) for size in took}})
        if dist.get_rank() == 0:
            print(f"{time.strftime('%H:%M:%S')} {named}", file=sys.stderr)
    return found


# --8<-- [start:record]
def rates_of(record: str, ranks: int, dtype: str = "bfloat16", how: str = "queued") -> dict[str, dict[int, float]]:
    """What `seconds` takes, from the section "rates": one JSON object a line."""
    found: dict[str, dict[int, float]] = {}
    for line in filter(lambda line: line.startswith("{"), record.splitlines()):
        row = json.loads(line)
        if (row["ranks"], row["dtype"], row["how"]) == (ranks, dtype, how):
            found[row["operation"]] = {int(size): value for size, value in row["seconds"].items()}
    return found


# --8<-- [end:record]


def size_of(nbytes: int) -> str:
    units = (1024 * MiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")
    return next(f"{nbytes // unit} {name}" for unit, name in units if nbytes >= unit)


def table(record: str, worlds: Sequence[int], dtype: str, how: str, bandwidth: bool = False) -> str:
    """A row for each operation and number of ranks: µs, or GB/s that leave each rank."""
    found = {ranks: rates_of(record, ranks, dtype, how) for ranks in worlds}
    sizes = sorted(next(iter(found[worlds[0]].values())))
    lines = [f"{'GB/s' if bandwidth else 'µs':26}" + "".join(f"{size_of(size):>9}" for size in sizes)]
    for operation in OPERATIONS:
        for ranks in worlds:
            took = found[ranks][operation]
            cells = [
                f"{sent(operation, size, ranks) / took[size] / 1e9:9.1f}" if bandwidth else f"{took[size] * 1e6:9.1f}"
                for size in sizes
            ]
            lines.append(f"{f'{operation}, {ranks} ranks':26}" + "".join(cells))
    return "\n".join(lines)


def predicted(record: str, worlds: Sequence[int]) -> str:
    """Sizes between those that were measured, predicted from them and measured."""
    lines = []
    for ranks in worlds:
        rates = rates_of(record, ranks)
        for operation, found in rates_of(record, ranks, how="between").items():
            for size, took in found.items():
                guess = seconds(operation, size, rates)
                name, error = f"{operation}, {ranks} ranks, {size_of(size)}", guess / took - 1
                times = f"predicted {guess * 1e6:8.1f} µs, measured {took * 1e6:8.1f} µs"
                lines.append(f"{name:36} {times}, error {error:+6.1%}")
    return "\n".join(lines)


def report(record: str) -> str:
    """The sections that the page shows, and the record itself."""
    worlds = sorted({json.loads(line)["ranks"] for line in record.splitlines()})
    return "\n".join(
        (
            f"==== time\n{table(record, worlds, 'bfloat16', 'queued')}",
            f"==== bandwidth\n{table(record, worlds, 'bfloat16', 'queued', bandwidth=True)}",
            f"==== fp32\n{table(record, worlds, 'float32', 'queued', bandwidth=True)}",
            f"==== alone\n{table(record, worlds, 'bfloat16', 'alone')}",
            f"==== predicted\n{predicted(record, worlds)}",
            f"==== rates\n{record}",
        )
    )


# ---- starting ------------------------------------------------------------------------------------------------------


def worlds() -> list[int]:
    """How many ranks are measured: 2, 4, ... up to this machine's GPUs, and all of them; 2 without two GPUs."""
    gpus = torch.cuda.device_count()
    return sorted({2, max(2, gpus), *(2**power for power in range(1, 20) if 2**power <= gpus)})


def torchrun(program: Sequence[str], ranks: int) -> str:
    """What rank 0 of a program prints: a file, or -m and a module. A rank that dies ends the others."""
    command = f"-m torch.distributed.run --standalone --nproc-per-node {ranks}".split()
    settings = {"OMP_NUM_THREADS": "1"} | dict(os.environ)
    done = subprocess.run([sys.executable, *command, *program], env=settings, check=True, stdout=subprocess.PIPE)
    return done.stdout.decode()


def joined(backend: str = "") -> None:
    """Join the group that torchrun made; without `backend` by NCCL if each rank here has a GPU, else by gloo."""
    warnings.filterwarnings("ignore", category=FutureWarning)  # 2.13 renames collectives; 2.11 has the old names only
    local = int(os.environ["LOCAL_RANK"])
    gpus = torch.cuda.device_count() >= max(2, int(os.environ["LOCAL_WORLD_SIZE"])) and backend != "gloo"
    if gpus:
        torch.cuda.set_device(local)
    here = torch.device("cuda", local) if gpus else None
    dist.init_process_group(backend or ("nccl" if gpus else "gloo"), timeout=timedelta(seconds=100), device_id=here)


def main() -> None:
    """What torchrun starts: rank 0 prints."""
    joined()
    sizes = (SIZES, BETWEEN) if device().type == "cuda" else (SMALL, SMALL_BETWEEN)
    record = "\n".join(map(json.dumps, rows(*sizes)))
    if dist.get_rank() == 0:
        print(report(record), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main_of_all() -> None:
    """Measure each number of ranks, and print them side by side."""
    program = ["-m", __spec__.name] if __spec__ else [__file__]
    lines = [line for ranks in worlds() for line in torchrun(program, ranks).splitlines()]
    print(report("\n".join(line for line in lines if line.startswith("{"))))


if __name__ == "__main__":
    main() if "RANK" in os.environ else main_of_all()

"""What PyTorch's allocator for GPUs does with the memory that it has from CUDA. It needs a CUDA GPU.

Run `python -m snippets.validation.memory_allocator`.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from snippets.validation.memory import MB, Arena, arena, read, recorded, report
from snippets.validation.memory_remedies import LENGTH, ROWS, SIZES, Model, in_parts, sdpa, train_step, with_remedies

MiB = 2**20


def now() -> Arena:
    torch.cuda.synchronize()
    return arena(torch.cuda.memory._snapshot())


def line(name: str, found: Arena) -> str:
    sizes = found.reserved, found.allocated, found.free, found.idle, found.largest
    return f"{name:<40}" + "".join(f"{size / MB:>10,.0f}" for size in sizes)


HEAD = f"{'MB':<40}" + "".join(f"{name:>10}" for name in ("reserved", "allocated", "free", "idle", "largest"))


def empty(mebibytes: int) -> Tensor:
    return torch.empty(mebibytes * MiB, dtype=torch.uint8, device="cuda")


def started_anew() -> None:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def snapshot() -> None:
    """Who held the peak of a training step, line by line; and the same with two remedies."""
    model = Model(**SIZES).cuda()
    tokens = torch.randint(SIZES["vocabulary"], (ROWS, LENGTH), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    remedied = with_remedies(model, attention=sdpa, loss=in_parts)
    for name, chosen in (("snapshot", model), ("snapshot, remedied", remedied)):
        step = lambda chosen=chosen: train_step(chosen, optimizer, tokens, tokens)  # noqa: E731
        step()
        started_anew()
        history = read(recorded(step))
        print(f"==== {name}")
        print(report(history, 14))
        # the allocator's own count, of blocks: what was asked for is rounded up
        print(f"max_memory_allocated{torch.cuda.max_memory_allocated() / MB:>48,.1f}")
        print(f"max_memory_reserved {torch.cuda.max_memory_reserved() / MB:>48,.1f}")


# --8<-- [start:empty]
def empty_cache() -> None:
    """What `empty_cache` returns to CUDA, and what it cannot."""
    print(HEAD)
    started_anew()
    tensors = [empty(64) for _ in range(32)]
    print(line("32 tensors of 64 MiB", now()))
    tensors = tensors[:1]
    print(line("31 of them deleted", now()))
    torch.cuda.empty_cache()
    print(line("empty_cache()", now()))
    del tensors
    torch.cuda.empty_cache()
    small = [empty(5) for _ in range(64)]  # four share a segment of 20 MiB
    print(line("64 tensors of 5 MiB instead", now()))
    small = small[::16]
    torch.cuda.empty_cache()
    print(line("60 of them deleted, empty_cache()", now()))
    del small


# --8<-- [end:empty]


# --8<-- [start:cost]
def cost() -> None:
    """What a step pays if the cache is emptied after each."""

    def step() -> None:
        kept = [empty(64) for _ in range(16)]
        del kept

    def milliseconds(after: Callable[[], None]) -> float:
        step()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(20):
            step()
            after()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / 20 * 1e3

    started_anew()
    print(f"16 tensors of 64 MiB made and freed:    {milliseconds(lambda: None):.3f} ms")
    print(f"the same, and empty_cache() after each: {milliseconds(torch.cuda.empty_cache):.3f} ms")


# --8<-- [end:cost]


# --8<-- [start:growing]
def growing() -> None:
    """Batches that grow, as sequences of other lengths do: each is a little larger than all holes before."""
    kept = [empty(20)]
    for size in range(100, 1100, 100):  # as activations: two of the length, one of them kept a while
        first, second = empty(size), empty(size + 20)
        kept.append(empty(20))
        del first, second
    found = now()
    asked = 2 * 1000 + 20 + 20 * len(kept)
    print(line(f"the most at a time: {asked * MiB / MB:,.0f}", found))


# --8<-- [end:growing]


def message() -> None:
    """What an allocation says that fails: here because this process may use a small share of the GPU only."""
    whole = torch.cuda.get_device_properties(0).total_memory
    started_anew()
    torch.cuda.set_per_process_memory_fraction(4096 * MiB / whole)
    kept = [empty(256) for _ in range(12)]
    fives = [empty(5) for _ in range(150)]  # four share a segment of 20 MiB
    kept += fives[::4]
    del fives
    try:
        empty(1024)
    except torch.OutOfMemoryError as error:
        print(str(error))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    print(HEAD)
    print(line("here", now()))
    del kept


def process(section: str, **environment: str) -> str:
    """What a section prints in a process of its own, whose allocator is set up by the environment."""
    command = [sys.executable, "-m", "snippets.validation.memory_allocator", section]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{section}: {done.stderr.strip()[-500:]}")
    return done.stdout.rstrip("\n")


def main(arguments: list[str]) -> int:
    """Print what the allocator does; returns the exit status."""
    if not torch.cuda.is_available():
        print("no CUDA GPU: PyTorch's allocator for the CPU keeps nothing back, so there is nothing to see")
        return 0
    if arguments == ["growing"]:
        growing()
        return 0
    if arguments == ["message"]:
        message()
        return 0
    try:
        everything()
    except Exception as error:
        free, whole = torch.cuda.mem_get_info()
        own = torch.cuda.memory_reserved()
        error.add_note(f"MB of the GPU's {whole / MB:,.0f} that are free: {free / MB:,.0f}; ours: {own / MB:,.0f}")
        raise
    return 0


def everything() -> None:
    """All sections, one after the other."""
    print("==== empty cache")
    empty_cache()  # first: a model leaves workspaces of libraries behind
    print("==== cost")
    cost()
    snapshot()
    print("==== fragments")
    print(HEAD)
    print("as it is\n" + process("growing"))
    for setting in ("expandable_segments:True", "roundup_power2_divisions:4", "max_split_size_mb:128"):
        print(f"{setting}\n" + process("growing", PYTORCH_CUDA_ALLOC_CONF=setting))
    print("==== message")
    print(process("message"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What the GPU's allocator keeps: reserved against allocated, fragmentation and its remedy, and what empty_cache does.

Run `python -m snippets.validation.memory_allocator` on a machine with a GPU; without one there is no such allocator.
"""

import os
import subprocess
import sys

import torch
from torch import Tensor

from snippets.validation import memory
from snippets.validation.memory import MB, Arena, arena
from snippets.validation.memory_fragmented import PROGRAMS, in_use

EXPANDABLE = "expandable_segments:True"


# --8<-- [start:reserved]
def reserved() -> list[tuple[str, Arena, int]]:
    """What PyTorch and the driver say after each step of a program that frees all that it made."""
    found = []

    def note(what: str) -> None:
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        found.append((what, arena(torch.cuda.memory._snapshot()), total - free))

    note("at the start")
    tensors: list[Tensor] | None = [torch.empty(50 * MB, dtype=torch.uint8, device="cuda") for _ in range(20)]
    note("20 tensors of 50 MB")
    tensors = tensors[:1]
    note("19 of them deleted")
    torch.cuda.empty_cache()
    note("empty_cache()")
    del tensors
    torch.cuda.empty_cache()
    note("all deleted, empty_cache()")
    return found


# --8<-- [end:reserved]


def in_a_process(program: str, settings: str) -> str:
    """The line of a process of its own: the settings are read when the allocator starts."""
    variables = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": settings}
    command = [sys.executable, "-m", "snippets.validation.memory_allocator", program]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return done.stdout.strip("\n")


# --8<-- [start:step]
def step_in_a_snapshot() -> str:
    """Who holds memory at the peak of a training step, as the allocator tells it."""
    from snippets.validation.memory_remedies import Model
    from snippets.validation.memory_step import train_step

    model = Model(2, 2048, 16, 32768).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(32768, (4, 2049), device="cuda")
    batch = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    train_step(model, optimizer, *batch)  # the optimizer's state is made in the first step
    return memory.report(memory.read(memory.recorded(lambda: train_step(model, optimizer, *batch))), most=8)


# --8<-- [end:step]


def main(arguments: list[str]) -> int:
    """Print each section; returns the exit status."""
    if not torch.cuda.is_available():
        print("no CUDA GPU: the allocator of this page is that of a GPU, so there is nothing to look at")
        return 0
    if arguments:
        most, after, emptied = in_use(arguments[0])
        print(f"{most / MB:>14,.0f}{after.reserved / MB:>14,.0f}{emptied.reserved / MB:>22,.0f}")
        return 0
    torch.zeros(1, device="cuda")  # starts CUDA
    torch.cuda.empty_cache()
    print("==== reserved")
    print(f"{'MB':28}{'allocated':>12}{'reserved':>12}{'nvidia-smi':>12}")
    for what, found, used in reserved():
        print(f"{what:28}{found.allocated / MB:>12,.0f}{found.reserved / MB:>12,.0f}{used / MB:>12,.0f}")
    for program in PROGRAMS:
        print(f"==== {program}")
        print(f"{'MB':28}{'asked for':>14}{'reserved':>14}{'after empty_cache()':>22}")
        for settings in ("", EXPANDABLE):
            print(f"{settings or 'default':28}{in_a_process(program, settings)}")
    print("==== snapshot")
    print(step_in_a_snapshot())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

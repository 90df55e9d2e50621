"""Two programs that fragment a GPU's memory, and what the allocator keeps of each."""

from collections.abc import Callable

import torch
from torch import Tensor

from snippets.validation.memory import MB, Arena, arena


# --8<-- [start:growing]
def growing(steps: int = 64) -> None:
    """Steps on texts that get longer: each makes three activations a little larger than any before, and frees them."""
    for step in range(steps):
        x = torch.empty(1024 + 32 * step, 4096, device="cuda")  # 17 to 50 MB
        y = x.relu()
        z = y + x
        del x, y, z


# --8<-- [end:growing]


# --8<-- [start:holes]
def holes() -> list[Tensor]:
    """Large tensors come and go, smaller ones take their places, and then one large tensor is wanted."""
    large = [torch.empty(64 * MB, dtype=torch.uint8, device="cuda") for _ in range(40)]
    del large
    smaller = [torch.empty(40 * MB, dtype=torch.uint8, device="cuda") for _ in range(40)]
    return [*smaller, torch.empty(500 * MB, dtype=torch.uint8, device="cuda")]


# --8<-- [end:holes]

PROGRAMS: dict[str, Callable[[], object]] = {"growing": growing, "holes": holes}


def in_use(program: str) -> tuple[int, Arena, Arena]:
    """The most bytes that tensors ever asked for; the allocator after the program, and once more after empty_cache."""
    kept = PROGRAMS[program]()
    torch.cuda.synchronize()
    after = arena(torch.cuda.memory._snapshot())
    torch.cuda.empty_cache()
    emptied = arena(torch.cuda.memory._snapshot())
    del kept
    return torch.cuda.memory_stats()["requested_bytes.all.peak"], after, emptied

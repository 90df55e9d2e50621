"""Work of a fixed size, and the same with 5% more, which two sides take turns at."""

import random
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

from snippets.validation.gate import Samples, Side, take_turns

Call = Callable[[], object]
UNITS = 20  # of work; one more is a slowdown of exactly 5%
PROCESSES = 10  # of each side
SAMPLES = 11  # that each takes


# --8<-- [start:work]
def repeated(unit: Call, times: int) -> Call:
    """A call that does a unit of work so many times."""

    def call() -> None:
        for _ in range(times):
            unit()

    return call


def on_a_cpu() -> dict[str, Call]:
    """One unit of work that the interpreter rules, and one that the processor's arithmetic does."""
    data = bytes(range(256)) * 64
    return {"interpreter": lambda: sum(number * number for number in range(300)), "checksum": lambda: zlib.crc32(data)}


def on_a_gpu() -> dict[str, Call]:
    """One unit that launches rule, one that memory rules, one that matrix products rule."""
    import torch

    small, large = torch.zeros(1024, device="cuda"), torch.randn(2**26, device="cuda").bfloat16()
    a, b = (torch.randn(2048, 2048, device="cuda").bfloat16() for _ in range(2))
    return {"launches": small.neg, "memory": large.neg_, "matrix": lambda: a @ b}


def unchanged() -> dict[str, Call]:
    """The benchmarks as they are."""
    return {name: repeated(unit, UNITS) for name, unit in units().items()}


def planted() -> dict[str, Call]:
    """The benchmarks with 5% more work."""
    return {name: repeated(unit, UNITS + 1) for name, unit in units().items()}


# --8<-- [end:work]


def units() -> dict[str, Call]:
    return on_a_gpu() if has_gpu() else on_a_cpu()


def has_gpu() -> bool:
    """Whether there is a GPU to measure on. PyTorch takes seconds to import: asked only where there may be one."""
    if not any(map(shutil.which, ("nvidia-smi", "rocm-smi"))):
        return False
    import torch

    return torch.cuda.is_available()


SIDES = {
    "old": Side(__file__, "unchanged", str(Path(__file__).parents[2])),
    "same": Side(__file__, "unchanged", str(Path(__file__).parents[2])),
    "slow": Side(__file__, "planted", str(Path(__file__).parents[2])),
}


def measure(processes: int = PROCESSES, samples: int = SAMPLES, seconds: float = 0.005) -> list[Samples]:
    """Old code, the same code again, and slower code, in turn; each item comes from three processes of their own."""
    chance = random.Random()
    return [take_turns(SIDES, samples, seconds, chance)[0] for _ in range(processes)]


if __name__ == "__main__":  # to see that all of it runs; the gate calls unchanged() and planted() itself
    for name, call in unchanged().items():
        call()
        print(f"{name} runs")

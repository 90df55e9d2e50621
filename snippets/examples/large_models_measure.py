"""A step's peak and seconds, as measured, and how results are printed."""

import gc
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from snippets.examples.large_models_change import Change
from snippets.examples.large_models_step import trained
from snippets.validation.memory import peak_of, record

GIB = 2**30
BEGAN, PATIENCE = time.perf_counter(), 180.0  # seconds, after which a GPU begins no further step
Result = TypeVar("Result")


@dataclass
class Ran:
    """What a step took: the peak in bytes, and seconds."""

    peak: float
    seconds: float


# --8<-- [start:measured]
def measured(model: nn.Module, tokens: Tensor, change: Change) -> Ran:
    with trained(model, change) as (step, optimizer):
        for _ in range(2):  # the first step makes the states, and compiles
            step(tokens)
        if not tokens.is_cuda:
            return Ran(peak_of(record(lambda: step(tokens), model, optimizer)).nbytes, seconds(lambda: step(tokens)))
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        taken = min(seconds(lambda: step(tokens)) for _ in range(2))
        return Ran(torch.cuda.max_memory_allocated(), taken)


# --8<-- [end:measured]


def seconds(call: Callable[[], object]) -> float:
    wait = torch.cuda.synchronize if torch.cuda.is_available() else int
    wait()
    start = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - start


def tried(model: nn.Module, tokens: Tensor, change: Change) -> Ran | str:
    """What it took, or in one line why it did not run."""
    found = ran_or_why(lambda: measured(model, tokens, change))
    if change.budget is not None:
        torch.compiler.reset()  # the next budget is read in a first call
    return found


def ran_or_why(call: Callable[[], Result]) -> Result | str:
    """What the call gives, or in one line why it gave nothing: the others shall run all the same."""
    if torch.cuda.is_available() and time.perf_counter() - BEGAN > PATIENCE:
        return f"not run: {PATIENCE:.0f} s are over (PATIENCE)"
    found: Result | str
    try:
        found = call()
    except torch.OutOfMemoryError:
        found = "out of memory"
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        found = f"failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:60]}"
    emptied()
    return found


def emptied() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def section(name: str) -> None:
    print(f"==== {name}", flush=True)
    progress(name)


def progress(name: str) -> None:
    print(f"{time.perf_counter() - BEGAN:6.1f} s  {name}", file=sys.stderr, flush=True)


def size(nbytes: float) -> str:
    return f"{nbytes / GIB:.2f} GiB" if nbytes > 2**27 else f"{nbytes / 2**20:.2f} MiB"


def error(by_hand: float, real: float) -> str:
    return f"{100 * (by_hand / real - 1):+.1f} %" if real else "0.0 %"


def line(name: str, *cells: str) -> None:
    print(f"{name:34}" + "".join(f" {cell:>10}" for cell in cells), flush=True)


def or_why(call: Callable[[], None]) -> None:
    """A section by itself: where it fails, it says why."""
    why = ran_or_why(call)
    if why is not None:
        print(why)

"""Seven programs, each slow for one reason, and each mended: can the diagnosis tell them apart, and what was it worth?

Run `python -m snippets.validation.diagnosis_programs` to see it for the machine at hand.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from snippets.validation.diagnosis import Ceilings, Diagnosis, diagnose, read, record
from snippets.validation.diagnosis_data import from_pageable, from_pinned, loaded_ahead, loaded_here
from snippets.validation.diagnosis_host import launched, logged, one_graph_each, one_graph_for_all, recorded
from snippets.validation.diagnosis_kernels import fused, in_bfloat16, in_float32, unfused
from snippets.validation.roofline import bandwidth, matrix_rate
from snippets.validation.timing import Call, measure, seconds_of


@dataclass(frozen=True)
class Program:
    """A step before and after its mend.

    Attributes:
        cause: what the diagnosis has to say of `before`.
        before, after: given a device, prepare and return the step.
        only_on_gpu: without a GPU there is nothing to see.
        each_call_differs: each call of the step costs anew, so few are made.
    """

    cause: str
    before: Callable[[torch.device], Call]
    after: Callable[[torch.device], Call]
    only_on_gpu: bool = False
    each_call_differs: bool = False


PROGRAMS = (
    Program("launching", launched, recorded, only_on_gpu=True),
    Program("memory", unfused, fused),
    Program("matrix", in_float32, in_bfloat16),
    Program("loading", loaded_here, loaded_ahead),
    Program("copying", from_pageable, from_pinned, only_on_gpu=True),
    Program("waiting", partial(logged, every=1), partial(logged, every=50), only_on_gpu=True),
    Program("compiling", one_graph_each, one_graph_for_all, each_call_differs=True),
)


# --8<-- [start:examine]
def examine(step: Call, ceilings: Ceilings, few: bool) -> Diagnosis:
    """Profile a step and say where its time went. The trace is not kept."""
    with tempfile.TemporaryDirectory() as folder:
        path = record(step, Path(folder) / "trace.json", *((2, 1) if few else (5, 3)))
        return diagnose(read(path), ceilings)


def ceilings_of(device: torch.device) -> Ceilings:
    """What this machine can do at most, measured."""
    on_gpu = device.type == "cuda"
    memory = bandwidth(device, 2**28 if on_gpu else 2**22)["copy"].rate
    dtypes = (torch.float32, torch.bfloat16) if on_gpu else (torch.float32,)
    rates = {
        str(dtype)[6:]: max(ceiling.rate for ceiling in matrix_rate(device, 4096 if on_gpu else 512, dtype).values())
        for dtype in dtypes
    }
    return Ceilings(memory, rates)


# --8<-- [end:examine]


def gain(program: Program, before: Call, after: Call, device: torch.device) -> tuple[float, float]:
    """Seconds of a step before and after, by the wall clock."""
    if program.each_call_differs:  # a second round would find what the first has compiled
        return seconds_of(before, device, 2) / 2, seconds_of(after, device, 2) / 2
    found = measure({"before": before, "after": after}, device, "calls", rounds=7, patience=3.0)
    return found["before"].p50, found["after"].p50


def main() -> None:
    """Diagnose each program before and after, and print what the mend gained."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ceilings = ceilings_of(device)
    table = []
    for program in PROGRAMS:
        if program.only_on_gpu and device.type == "cpu":
            table.append(f"{program.cause:10} not on a CPU: there is nothing to launch, to copy to or to wait for")
            continue
        before, after = program.before(device), program.after(device)
        first, second = (examine(step, ceilings, program.each_call_differs) for step in (before, after))
        print(f"==== {program.cause}\n{first}")
        slow, fast = gain(program, before, after, device)
        print(f"==== {program.cause}, mended\n{second}")
        table.append(
            f"{program.cause:10} {first.cause:10} {slow * 1e3:10.3f} ms  {fast * 1e3:10.3f} ms  "
            f"{slow / fast:8.2f} x  then {second.cause}"
        )
    print("==== gains")
    print(f"{'slow by':10} {'diagnosed':10} {'before':>13}  {'mended':>13}  {'gain':>10}")
    print("\n".join(table))


if __name__ == "__main__":
    main()

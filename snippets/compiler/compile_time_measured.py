"""A start in a process of its own, with a cache folder of its own, and tables of such starts."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from snippets.compiler.compile_time_model import Size
from snippets.compiler.compile_time_start import INSIDE, Start

ROOT = Path(__file__).parents[2]


# --8<-- [start:measured]
def measured(way: str, layers: int, size: Size, cache: str, **options: str) -> Start:
    """`start` in a new process that keeps its caches in the folder `cache`: cold if that is empty."""
    order = {"began": 0.0, "way": way, "layers": layers, "size": vars(size), **options}
    order["began"] = time.time()
    done = subprocess.run(
        [sys.executable, "-m", "snippets.compiler.compile_time", "start", json.dumps(order)],
        cwd=ROOT,
        env=environment(cache),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{way}, {layers} layers: {done.stderr.strip().splitlines()[-1]}")
    return Start(**json.loads(done.stdout.splitlines()[-1]))


def environment(cache: str, **more: str) -> dict[str, str]:
    """This process's variables without what it was told about compilers and caches, and with a cache folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TORCH", "TRITON"))}
    return kept | {"TORCHINDUCTOR_CACHE_DIR": cache} | more


# --8<-- [end:measured]
def seconds_line(layers: int, state: str, found: Start) -> str:
    """A row of `show_seconds`: where the first step's seconds went."""
    parts, first = [found.inside[stage] for stage in INSIDE], found.stages["first step"]
    cells = [*parts, max(first - sum(parts), 0.0), first]
    return f"{layers:>6} {state:<5}" + "".join(f"{cell:>11.2f} s" for cell in cells)


COLUMNS = {  # of `show_starts`, by stages
    "torch": ("import torch",),
    "model": ("make model",),
    "compiler": ("import compiler",),
    "hash": ("hash sources",),
    "load": ("load artifacts",),
    "2 steps": ("first step", "second step"),
}


def start_line(what: str, found: Start, slowest: float) -> str:
    """A row of `show_starts`: from the start of the process to the first fast step."""
    cells = [sum(found.stages.get(stage, 0.0) for stage in stages) for stages in COLUMNS.values()]
    text = "".join(f"{cell:>7.2f} s" for cell in [*cells, found.total])
    return f"{what:<22}{text} {found.total / slowest:>7.0%} {found.later * 1e3:>8.3f} ms"


def show_seconds(starts: dict[tuple[int, str], Start]) -> None:
    """Where the first step's seconds went, and how they grow with layers."""
    print("==== seconds")
    print(f"{'layers':>6} {'cache':<5}" + "".join(f"{name:>13}" for name in (*INSIDE, "rest", "first step")))
    for (layers, state), found in starts.items():
        print(seconds_line(layers, state, found))

    print("==== growth")
    counts = sorted({layers for layers, _ in starts})
    few, many = starts[counts[0], "cold"], starts[counts[-1], "cold"]
    print(f"from {counts[0]} layer to {counts[-1]}, cold")
    for stage in ("Dynamo", "AOTAutograd", "Inductor", "kernels"):
        one, all_ = few.inside[stage], many.inside[stage]
        share = all_ / sum(many.inside.values())
        print(f"{stage:<12} {all_ / max(one, 1e-9):>6.1f} x as long, then {share:>4.0%} of all compiling")


def show_starts(ways: dict[str, Start], layers: int) -> None:
    """What each way to start takes, from the process to the first fast step; and its graphs."""
    print("==== starts")
    head = "".join(f"{name:>9}" for name in (*COLUMNS, "in all"))
    print(f"{f'{layers} layers':<22}{head} {'of cold':>7} {'later step':>11}")
    for what, found in ways.items():
        print(start_line(what, found, ways["whole, cold"].total))

    print("==== graphs")
    for what, found in ways.items():
        if what != "eager":
            print(f"{what:<22} compilations {found.compilations}   cache hits {found.hits}   misses {found.misses}")

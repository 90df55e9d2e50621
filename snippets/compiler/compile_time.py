"""Where do the seconds between the start of a program and its first fast step go, and what shortens them?

Run `python -m snippets.compiler.compile_time`. Every line is measured in a new process with a cache folder of its own.
"""

import json
import math
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from snippets.compiler.compile_time_measured import measured, show_seconds, show_starts
from snippets.compiler.compile_time_model import SIZES, Size
from snippets.compiler.compile_time_start import Start, start
from snippets.validation.timing import yardstick


# --8<-- [start:break-even]
def break_even(eager: Start, compiled: Start) -> float:
    """Steps after which a program that compiles has caught up with one that does not; infinite if it never does."""
    saved = eager.later - compiled.later
    return math.inf if saved <= 0 else max(compiled.total - eager.total, 0.0) / saved


# --8<-- [end:break-even]


def at_depth(starts: dict[int, Start], layers: int) -> float:
    """Seconds of a first step with so many layers, on the line through the two deepest models measured."""
    (few, one), (many, other) = sorted(starts.items())[-2:]
    slope = (other.stages["first step"] - one.stages["first step"]) / (many - few)
    return other.stages["first step"] + slope * (layers - many)


def main() -> None:
    """Measure: layers and caches first, then ways to start faster."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size, counts = SIZES[device], ((1, 4, 16) if device == "cuda" else (1, 4))
    deepest = counts[-1]
    with tempfile.TemporaryDirectory() as folder:
        saved = f"{folder}/artifacts"

        def chain(way: str, layers: int) -> list[Start]:
            """Cold; then warm, in the same folder, or in an empty one from what the first process saved."""
            cache, keep = f"{folder}/{way}-{layers}", {"save": saved} if way == "regional" else {}
            found = [measured(way, layers, size, cache, **keep)]
            if way == "whole":
                found.append(measured(way, layers, size, cache))
            if way == "regional":
                found.append(measured(way, layers, size, f"{folder}/shipped", load=saved))
            return found

        with ThreadPoolExecutor(1 if device == "cuda" else 4) as pool:  # one at a time where times are published
            wholes = [pool.submit(chain, "whole", layers) for layers in counts]
            others = [pool.submit(chain, way, deepest) for way in ("eager", "nested", "regional")]
            of_whole, (eager, nested, regional) = ([each.result() for each in all_] for all_ in (wholes, others))
        artifacts = Path(saved).stat().st_size

    show_seconds(
        {
            (layers, state): found
            for layers, both in zip(counts, of_whole, strict=True)
            for state, found in zip(("cold", "warm"), both, strict=True)
        }
    )
    ways = {
        "eager": eager[0],
        "whole, cold": of_whole[-1][0],
        "nested, cold": nested[0],
        "each layer, cold": regional[0],
        "whole, warm": of_whole[-1][1],
        "each layer, artifacts": regional[1],
    }
    show_starts(ways, deepest)
    print(f"artifacts of one layer: {artifacts / 1e3:.1f} KB")

    print("==== exercises")
    for what in ("whole, cold", "each layer, cold", "whole, warm", "each layer, artifacts"):
        steps = break_even(ways["eager"], ways[what])
        print(f"{what:<22} {f'pays from step {math.ceil(steps)} on' if steps < math.inf else 'never pays'}")
    cold = {layers: both[0] for layers, both in zip(counts, of_whole, strict=True)}
    alone = ways["each layer, cold"].stages["first step"]
    print(f"first step of 64 layers, whole: {at_depth(cold, 64):.2f} s; of {deepest}, each layer: {alone:.2f} s")

    print("==== host")
    for what, seconds in yardstick(torch.device(device)).items():
        print(f"{what:<13} {seconds * 1e6:>8.3f} us")


if __name__ == "__main__":
    if sys.argv[1:2] == ["start"]:
        order = json.loads(sys.argv[2])
        order["size"] = Size(**order["size"])
        print(json.dumps(vars(start(**order))))
    else:
        main()

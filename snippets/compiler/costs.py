"""What torch.compile costs: compiling, and each call, guard, graph break, recompilation and CUDA graph.

Run `python -m snippets.compiler.costs`. The table gives wall clock, as median and range over repetitions. A call, a
guard and a graph break are each the difference between two programs that differ in nothing else.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from snippets.compiler.costs_calls import DEVICE, REPETITIONS, Sample, a_call, calls, compiled

ROOT = Path(__file__).parents[2]
STARTS = 3 if DEVICE == "cuda" else 1  # C++ takes long to compile
CALLS = 1000 if DEVICE == "cuda" else 50  # of a block


# --8<-- [start:block]
def block() -> nn.Module:
    """The MLP of a transformer's layer, small enough that compiling takes nearly all of its first call."""
    return nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).to(DEVICE)


def first_call() -> float:
    """Seconds of a compiled block's first call, in a process that has just started."""
    layer, x = torch.compile(block()), torch.randn(8, 64, 256, device=DEVICE)
    (x @ x.mT).sum().item()  # what any program waits for once, compiled or not
    with torch.no_grad():
        began = time.perf_counter()
        layer(x).sum().item()
        return time.perf_counter() - began


# --8<-- [end:block]


def starts() -> Iterator[tuple[str, Sample]]:
    """First calls in new processes: with empty caches, and with those that the one before has filled."""
    cold, warm = [], []
    for _ in range(STARTS):
        with tempfile.TemporaryDirectory() as folder:
            folders = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
            variables = {name: value for name, value in os.environ.items() if "FORCE_DISABLE_CACHES" not in name}
            variables |= folders | {"TORCHINDUCTOR_FX_GRAPH_CACHE": "1", "TORCHINDUCTOR_AUTOGRAD_CACHE": "1"}
            for sample in (cold, warm):
                command = [sys.executable, "-m", "snippets.compiler.costs", "first"]
                done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=True)
                sample.append(float(done.stdout.split()[-1]))
    yield "first call, empty caches", cold
    yield "first call, warm caches", warm


def recompilations() -> Sample:
    """Seconds of a first call at another number of rows, where each is compiled for."""
    with torch.no_grad():
        layer = compiled(block(), dynamic=False)
        sizes = [torch.randn(8, 32 + 8 * index, 256, device=DEVICE) for index in range(REPETITIONS + 1)]
        layer(sizes[0])
        sample = []
        for x in sizes[1:]:
            began = time.perf_counter()
            layer(x).sum().item()  # type: ignore[attr-defined]
            sample.append(time.perf_counter() - began)
        return sample


def blocks() -> Iterator[tuple[str, Sample]]:
    """A whole call of the block, as wall clock: eager, compiled, and replayed as a CUDA graph."""
    layer, x = block(), torch.randn(8, 64, 256, device=DEVICE)
    with torch.no_grad():
        yield "MLP, eager", a_call(layer, x, calls=CALLS)
        yield "MLP, compiled", a_call(compiled(layer), x, calls=CALLS)
        if DEVICE == "cuda":
            recorded = []
            for _ in range(REPETITIONS):
                graph = compiled(layer, mode="reduce-overhead")
                graph(x)
                torch.cuda.synchronize()
                began = time.perf_counter()
                graph(x)
                torch.cuda.synchronize()
                recorded.append(time.perf_counter() - began)
            yield "MLP, CUDA graph", a_call(graph, x, calls=CALLS)
            yield "CUDA graph, recording", recorded


def shown(name: str, sample: Sample) -> str:
    """A line: median, least and most, in a unit that suits."""
    ordered = sorted(sample)
    middle = ordered[len(ordered) // 2]
    unit, factor = ("s", 1.0) if middle >= 0.1 else ("ms", 1e3) if middle >= 1e-3 else ("µs", 1e6)
    digits = ".3f" if middle * factor < 10 else ".1f"
    median, least, most = (format(factor * value, digits) for value in (middle, ordered[0], ordered[-1]))
    return f"{name:<34}{median:>8} {unit:<3} ({least} to {most})"


def main() -> None:
    print("==== costs")
    for name, sample in (*starts(), ("recompilation", recompilations()), *calls(), *blocks()):
        print(shown(name, sample), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["first"]:
        print(first_call())
    else:
        main()

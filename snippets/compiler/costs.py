"""What torch.compile costs: compiling, and each call, guard, graph break, recompilation and CUDA graph.

Run `python -m snippets.compiler.costs`. The table gives wall clock, as median and range over repetitions. A call, a
guard and a graph break are each the difference between two programs that differ in nothing else.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.benchmark import Timer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROOT = Path(__file__).parents[2]
REPETITIONS = 5 if DEVICE == "cuda" else 3
STARTS = 3 if DEVICE == "cuda" else 1  # C++ takes long to compile
CALLS = 1000 if DEVICE == "cuda" else 50  # of a block
BREAKS = 2  # of a function
GUARDED = 1000  # integers that a function reads: the guards of a hundred are lost in the noise
Sample = list[float]  # seconds, one for each repetition


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


# --8<-- [start:calls]
def a_call(function: Callable[..., object], *inputs: object, calls: int = 1000) -> Sample:
    """Seconds of a call, back to back, as the host sees them: the work itself is small."""
    for _ in range(3):
        function(*inputs)
    timer = Timer("function(*inputs)", globals={"function": function, "inputs": inputs})
    return [timer.timeit(calls).median for _ in range(REPETITIONS)]


def add_one(x: Tensor) -> Tensor:
    return x + 1


class Configured:
    """A function that reads some integers, each of which compiled code guards."""

    def __init__(self, count: int):
        self.numbers = {f"n{index}": index for index in range(count)}
        self.names = list(self.numbers)

    def __call__(self, x: Tensor) -> Tensor:
        total = 0
        for name in self.names:
            total += self.numbers[name]
        return x + total


def whole(x: Tensor) -> Tensor:
    return x + 1 + 1 + 1


def broken(x: Tensor) -> Tensor:
    """The same, with BREAKS graph breaks; one within a loop would leave the whole function to eager."""
    x = x + 1
    torch._dynamo.graph_break()
    x = x + 1
    torch._dynamo.graph_break()
    return x + 1


# --8<-- [end:calls]


def difference(more: Sample, less: Sample, count: int = 1) -> Sample:
    """What each of `count` things costs that one program has more than another."""
    return [(a - b) / count for a, b in zip(more, less, strict=True)]


def compiled(function: Callable[..., object], **options: object) -> Callable[..., object]:
    """A function compiled on its own: what others have compiled is forgotten."""
    torch.compiler.reset()
    return torch.compile(function, **options)  # type: ignore[call-overload]


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


def calls() -> Iterator[tuple[str, Sample]]:
    """What is paid at each call, on a tensor so small that the host decides."""
    x = torch.randn(64, device=DEVICE)
    with torch.no_grad():
        yield "call, beyond eager code", difference(a_call(compiled(add_one), x), a_call(add_one, x))
        few, many = (a_call(compiled(Configured(count)), x) for count in (1, GUARDED + 1))
        yield "guard", difference(many, few, GUARDED)
        yield "graph break", difference(a_call(compiled(broken), x), a_call(compiled(whole), x), BREAKS)


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

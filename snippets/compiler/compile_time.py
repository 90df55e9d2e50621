"""Where do the seconds between the start of a program and its first fast step go, and what shortens them?

Run `python -m snippets.compiler.compile_time`. Every line is measured in a new process with a cache folder of its own.
"""

import importlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snippets.validation.timing import seconds_per_call, synchronize, yardstick

ROOT = Path(__file__).parents[2]


# --8<-- [start:model]
class Block(nn.Module):
    """A layer of a decoder: causal attention and a gated MLP, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        gate, up = self.up(self.norms[1](x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


# --8<-- [end:model]


class Plain(nn.Module):
    """A layer for a CPU: products alone, which Inductor leaves to a library, so that no C++ compiler has to run."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, width * heads), nn.Linear(width * heads, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x))


# --8<-- [start:region]
class Region(Block):
    """The same layer; inside a compiled model it is compiled once, and each further one refers to it."""

    forward = torch.compiler.nested_compile_region(Block.forward)


# --8<-- [end:region]


class PlainRegion(Plain):
    forward = torch.compiler.nested_compile_region(Plain.forward)


class Stack(nn.Module):
    """Layers, one after the other. `nn.Sequential` is PyTorch's own code, into which `Module.compile` doesn't look."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def make_model(way: str, layers: int, size: "Size") -> Stack:
    kinds = {"cuda": (Block, Region), "cpu": (Plain, PlainRegion)}
    kind = kinds[size.device][way == "nested"]
    with torch.device(size.device):
        return Stack([kind(size.width, size.heads) for _ in range(layers)]).to(size.dtype)


# --8<-- [start:ways]
def compile_model(model: Stack, way: str, **options: Any) -> None:
    """Say what is to be compiled, with options of `torch.compile`; nothing is, before the first call."""
    if way in ("whole", "nested"):
        model.compile(**options)  # one graph of all layers
    elif way == "regional":
        for layer in model.layers:
            layer.compile(**options)  # a graph of one layer, which the others share


# --8<-- [end:ways]


@dataclass(frozen=True)
class Size:
    """What is run, and where."""

    device: str
    width: int
    heads: int
    tokens: int

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device == "cuda" else torch.float32

    def make_input(self) -> Tensor:
        return torch.randn(1, self.tokens, self.width, device=self.device, dtype=self.dtype)


SIZES = {"cuda": Size("cuda", 1024, 8, 512), "cpu": Size("cpu", 64, 2, 16)}


# --8<-- [start:start]
@dataclass
class Start:
    """What happened between the start of a process and its first fast step, in seconds, one stage after the other."""

    stages: dict[str, float] = field(default_factory=dict)
    compilations: int = 0
    inside: dict[str, float] = field(default_factory=dict)  # the compiler's share of the first step, see INSIDE
    hits: int = 0  # graphs that came out of a cache
    misses: int = 0
    later: float = 0.0  # seconds of a step after the first two

    @property
    def total(self) -> float:
        return sum(self.stages.values())


def start(began: float, way: str, layers: int, size: Size, load: str = "", save: str = "") -> Start:
    """Go from `began`, when the process was asked for, to the first fast step."""
    found, last = Start(), began
    if size.device == "cpu":
        torch.set_num_threads(1)

    def done(stage: str) -> None:
        nonlocal last
        synchronize(torch.device(size.device))
        found.stages[stage], last = time.time() - last, time.time()

    done("import torch")
    model = make_model(way, layers, size)
    done("make model")
    if way != "eager":
        importlib.import_module("torch._inductor.compile_fx")  # else the first compilation would
        codecache = importlib.import_module("torch._inductor.codecache")
        done("import compiler")
        codecache.torch_key()  # of PyTorch's sources; the process keeps it
        codecache.CacheBase.get_system()  # of Triton's and of the device
        done("hash sources")
    if load:
        torch.compiler.load_cache_artifacts(Path(load).read_bytes())
        done("load artifacts")
    compile_model(model, way)
    with torch.inference_mode():
        x = size.make_input()  # made outside it would be another kind of tensor than what the first layer returns
        model(x)
        done("first step")
        model(x)
        done("second step")
        found.later = seconds_per_call(lambda: model(x), x.device)
    if way != "eager":
        found.compilations, found.inside = inside()
        found.hits, found.misses = cache_counts()
    if save:
        artifacts = torch.compiler.save_cache_artifacts()
        if artifacts is None:
            raise RuntimeError("nothing was compiled, so there is nothing to save")
        Path(save).write_bytes(artifacts[0])
    return found


# --8<-- [end:start]


# --8<-- [start:inside]
INSIDE = {
    "Dynamo": "from bytecode to a graph, and the guards",
    "AOTAutograd": "the graph in few kinds of operation",
    "Inductor": "what is fused, and the source of kernels",
    "kernels": "waiting for Triton or C++ to compile them",
    "cache": "in place of the three: look up, read, load kernels",
}


def inside() -> tuple[int, dict[str, float]]:
    """How many compilations there were in this process, and their seconds by stage."""
    from torch._dynamo.utils import get_compilation_metrics

    seconds, compilations = dict.fromkeys(INSIDE, 0.0), get_compilation_metrics()
    for metrics in compilations:
        nested = [  # each inside the one before it, in microseconds
            metrics.dynamo_cumulative_compile_time_us,
            metrics.aot_autograd_cumulative_compile_time_us,
            metrics.inductor_cumulative_compile_time_us,  # None: a cache had the answer
            metrics.triton_compile_time_us,
        ]
        dynamo, autograd, inductor, kernels = (value * 1e-6 if value else 0.0 for value in nested)
        seconds["Dynamo"] += dynamo - autograd
        if inductor:
            seconds["AOTAutograd"] += autograd - inductor
            seconds["Inductor"] += inductor - kernels
            seconds["kernels"] += kernels
        else:
            seconds["cache"] += autograd
    return len(compilations), seconds


# --8<-- [end:inside]


def cache_counts() -> tuple[int, int]:
    """Graphs that AOTAutograd's cache had, and had not."""
    from torch._dynamo.utils import counters

    counts = counters["aot_autograd"]
    return counts["autograd_cache_hit"], counts["autograd_cache_miss"] + counts["autograd_cache_bypass"]


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
    """A row of the first table: where the first step's seconds went."""
    parts, first = [found.inside[stage] for stage in INSIDE], found.stages["first step"]
    cells = [*parts, max(first - sum(parts), 0.0), first]
    return f"{layers:>6} {state:<5}" + "".join(f"{cell:>11.2f} s" for cell in cells)


COLUMNS = {  # of the second table, by stages
    "torch": ("import torch",),
    "model": ("make model",),
    "compiler": ("import compiler",),
    "hash": ("hash sources",),
    "load": ("load artifacts",),
    "2 steps": ("first step", "second step"),
}


def start_line(what: str, found: Start, slowest: float) -> str:
    """A row of the second table: from the start of the process to the first fast step."""
    cells = [sum(found.stages.get(stage, 0.0) for stage in stages) for stages in COLUMNS.values()]
    text = "".join(f"{cell:>7.2f} s" for cell in [*cells, found.total])
    return f"{what:<22}{text} {found.total / slowest:>7.0%} {found.later * 1e3:>8.3f} ms"


def show_seconds(starts: dict[tuple[int, str], Start]) -> None:
    """The first table, and what it says of layers."""
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
    """The second table."""
    print("==== starts")
    head = "".join(f"{name:>9}" for name in (*COLUMNS, "in all"))
    print(f"{f'{layers} layers':<22}{head} {'of cold':>7} {'later step':>11}")
    for what, found in ways.items():
        print(start_line(what, found, ways["whole, cold"].total))

    print("==== graphs")
    for what, found in ways.items():
        if what != "eager":
            print(f"{what:<22} compilations {found.compilations}   cache hits {found.hits}   misses {found.misses}")


def break_even(eager: Start, compiled: Start) -> float:
    """Steps after which a program that compiles has caught up with one that does not; infinite if it never does."""
    saved = eager.later - compiled.later
    return math.inf if saved <= 0 else max(compiled.total - eager.total, 0.0) / saved


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

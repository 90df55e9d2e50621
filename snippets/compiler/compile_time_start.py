"""From the start of a process to its first fast step, stage by stage, and the compiler's share."""

import importlib
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from snippets.compiler.compile_time_model import Size, compile_model, make_model
from snippets.validation.timing import seconds_per_call, synchronize


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

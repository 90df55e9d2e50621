"""What each mode of torch.compile is worth, on the same workloads: by the GPU's clock, and as a caller sees it."""

import copy
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn

from snippets.compiler.modes_options import MODES, OPTIONS, compiled
from snippets.compiler.modes_workloads import WORKLOADS, Block, make
from tests.benchmarks import wrong
from tests.benchmarks.bounds import bound, captured, ceiling, gpu, wall
from tests.benchmarks.case import Call, Case, Point, Results, Variant, Workload
from tests.benchmarks.own import own

NAMES = {  # of variants that many cases share
    "default": "compile",
    "max-autotune-no-cudagraphs": "compile-max",  # which has coordinate descent in it
}
NAMED = {"wide-block": "wide", "convolution": "conv"}  # workloads that pages call otherwise
SMALL = {
    "norms": {"layers": 2, "rows": 256, "columns": 4096},
    "mlp": {"layers": 2, "rows": 64, "width": 256},
    "convolution": {"layers": 2, "batch": 2, "channels": 16, "side": 8},
}


def points(device: torch.device) -> Iterable[Point]:
    """Modes at every workload on a GPU; on a CPU, where they differ little, one at small ones.

    Coordinate descent by itself is built where launches are not all: elsewhere it changes what nobody waits for.
    """
    if device.type == "cpu":
        for kind, shape in SMALL.items():
            yield Point(shape, "float32", "forward", ("calls",), ("compile",), kind)
        return
    for name, workload in WORKLOADS.items():
        kind, layers = next(iter(workload.items()))
        shape = {"layers": layers} | {size: number for size, number in workload.items() if size != kind}
        alone = ("coordinate-descent",) if name in ("wide-block", "norms") else ()
        variants = ("compile", "reduce-overhead", "compile-max", "max-autotune", *alone, *OPTIONS)
        modes = ("device", "calls") if name == "norms" else ("calls", "device")
        yield Point(shape, "bfloat16", "forward", modes, variants, kind, NAMED.get(name, name))


def prepare(point: Point, device: torch.device) -> Workload:
    """The module, its inputs, and itself in every mode."""
    layers, *_ = point.shape.values()
    sizes = {size: number for size, number in point.shape.items() if size != "layers"}
    module, inputs = make({point.part: layers, **sizes}, device, getattr(torch, point.dtype))
    home = next((name for name, shape in WORKLOADS.items() if next(iter(shape)) == point.part), "")
    modes = [*MODES, *(name for name, (where, _) in OPTIONS.items() if where == home and name != "cpp-wrapper")]
    variants = {"eager": Variant(lambda: call(module, inputs), results)}
    for mode in modes:
        variants[NAMES.get(mode, mode)] = Variant(
            partial(built, module, mode, inputs),
            results,
            chooses_by_timing="autotune" in mode or mode in ("coordinate-descent", "no-epilogue-fusion"),
        )
    produced = results(call(module, inputs)())
    weights = sum(t.nbytes for t in (*module.parameters(), *module.buffers()))
    return Workload(
        variants=variants,
        baseline="eager",
        reference=lambda: results(call(copy.deepcopy(module).double(), tuple(map(exact, inputs)))()),
        bytes_read=weights + sum(x.nbytes for x in inputs),
        bytes_written=sum(t.nbytes for t in produced.values()),
        flops=flops(module, inputs),
        mix="read" if weights > sum(x.nbytes for x in inputs) else "copy",
        wrong={
            "5% too large": wrongly(wrong.scaled(module), inputs),
            "second half not written": wrongly(wrong.changed(module, half), inputs),
            **part_left_out(module, inputs),
        },
    )


def call(function: Callable, inputs: tuple[Tensor, ...]) -> Call:
    """Inference: freezing, for one, asks for it."""
    return torch.no_grad()(partial(function, *inputs))


def built(module: nn.Module, mode: str, inputs: tuple[Tensor, ...]) -> Call:
    """Compiled, called, and what a CUDA graph does in its second and third call done."""

    def apply(*tensors: Tensor) -> object:
        return module(*tensors)

    fast = call(compiled(own(apply), mode), inputs)
    for _ in range(3):
        fast()
    return fast


def exact(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def flops(module: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    """Of products, attention and convolutions, as PyTorch counts; norms as ten a value."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(*inputs)
    return counter.get_total_flops() or 10 * sum(x.numel() for x in inputs)


def half(y: Tensor) -> Tensor:
    """Of the last dimension only half is written: in images it is narrower than a tile."""
    return torch.cat((y[..., : y.shape[-1] // 2], torch.zeros_like(y[..., y.shape[-1] // 2 :])), -1)


def part_left_out(module: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, Callable[[Results], Results]]:
    """The module without something that it is made of."""
    other = copy.deepcopy(module)
    blocks = [layer for layer in other.modules() if isinstance(layer, Block)]
    if blocks:
        for block in blocks:
            block.out.weight.data.zero_()
        return {"attention left out": wrongly(other, inputs)}
    if isinstance(other, nn.Sequential):
        return {"last layer left out": wrongly(other[:-1], inputs)}
    return {"second norm left out": wrongly(lambda *tensors: tuple(x + x for x in tensors), inputs)}


def wrongly(function: Callable, inputs: tuple[Tensor, ...]) -> Callable[[Results], Results]:
    return lambda baseline: results(call(function, inputs)())


def results(returned: object) -> Results:
    tensors = returned if isinstance(returned, tuple) else (returned,)
    return {f"output {n}" if n else "output": tensor for n, tensor in enumerate(tensors)}


COPY = ceiling("copy", case="compiler/modes")
printed = partial(captured, "table")
NORMS = {"replayed": gpu("reduce-overhead", "norms"), "launched": gpu("compile", "norms")}
TENSORS = {"tensors": 8, "rows": 1024, "columns": 4096, "width": 2}
# The part of a call for which the GPU is busy.
busy = bound("%", "kernels / call", kernels=gpu("{variant}", "{at}"), call=wall("{variant}", "{at}"))
# After how many calls a mode's compiling is earned back over eager.
pays = bound(
    "", "'never' if after >= 0.98 * before else compiling / (before - after)",
    compiling=printed("{row}", "{mode}", which=4), before=wall("eager", "{at}"), after=wall("{variant}", "{at}"),
)  # fmt: skip
# After how many calls a mode's longer compiling is earned back over the default.
pays_more = bound(
    "", "'never' if after >= 0.98 * before else "
    "'at once' if compiling <= usual else (compiling - usual) / (before - after)",
    compiling=printed("{row}", "{mode}", which=4), usual=printed("{row}", "default", which=4),
    before=wall("compile", "{at}"), after=wall("{variant}", "{at}"),
)  # fmt: skip
# The seconds that some steps of decoding take, with nothing compiled.
spent_eagerly = bound("s", "calls * each", each=wall("eager", "decode"))
# The seconds that some steps of decoding take in a mode, compiling included.
spent = bound(
    "s", "compiling + calls * each", each=wall("{variant}", "decode"), compiling=printed("decode", "{mode}", which=4)
)
# What copying the norms' inputs takes at least, each value read once and written once.
copied = bound("us", "2 * tensors * rows * columns * width / copy", TENSORS, copy=COPY)
lost_by_replaying = bound("us", "replayed - launched", NORMS)  # How much longer the norms keep the GPU busy as a graph.
# The part of that loss which the copies explain.
explained_by_copies = bound(
    "%", "2 * tensors * rows * columns * width / copy / (replayed - launched)", TENSORS, NORMS, copy=COPY
)

LABELS = {
    "reduce-overhead": {"label": "reduce-overhead", "short": "reduce-overhead", "role": "graph"},
    "coordinate-descent": {"label": "coordinate descent", "short": "coordinate descent", "role": "rewrite"},
    "max-autotune": {"label": "max-autotune as a graph", "short": "max-autotune graph", "role": "compile-max"},
    "combo-kernels": {"label": "combo kernels", "short": "combo kernels", "role": "rewrite"},
    "no-epilogue-fusion": {"label": "max-autotune, no epilogue fusion", "short": "no epilogues", "role": "rewrite"},
    "freezing": {"label": "freezing", "short": "freezing", "role": "rewrite"},
}
CASE = Case(
    question="What does each mode of torch.compile save on the GPU, and what of it does a caller see?",
    check_at={
        "forward": [
            {"part": "mlp", "layers": 2, "rows": 32, "width": 128},
            {"part": "block", "layers": 1, "batch": 2, "tokens": 32, "width": 128},
            {"part": "decode", "layers": 2, "batch": 2, "cached": 64, "width": 128},
            {"part": "norms", "layers": 2, "rows": 64, "columns": 1024},
            {"part": "convolution", "layers": 2, "batch": 2, "channels": 16, "side": 8},
        ]
    },
)

"""Two GPUs and more: what each strategy moves, how long the step waits for it, and the memory, predicted and measured.

It needs transformers (5.17). `python -m snippets.examples.multi_gpu` starts torchrun itself, on all GPUs, or with gloo
on two CPU processes and a tiny model. Predictions for n GPUs come from the same program on one GPU and from the
links' bandwidth, both measured in the same run.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from snippets.examples.llama import LLAMA, TINY, make_model, say_causal
from snippets.examples.multi_gpu_measure import (
    GIB,
    GPU,
    MIB,
    allocated,
    among_ranks,
    between,
    moment,
    nbytes,
    nothing_left,
    synchronize,
    tell,
    told,
    traced,
)
from snippets.reference.communication import OPERATIONS, Rates, seconds, sent, worlds
from snippets.reference.communication import measure as measured_rates

SIZES = (LLAMA if GPU else TINY | {"num_key_value_heads": 4}) | {"tie_word_embeddings": True}
BATCH, LENGTH = (4, 2048) if GPU else (2, 32)  # for each process
SWEEP = [2**k for k in (range(13, 32, 2) if GPU else range(6, 22, 5))]  # bytes: all messages are between them
WARM, STEPS = (3, 8) if GPU else (1, 1)
LARGE = SIZES | ({"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 24} if GPU else {})


# --8<-- [start:fsdp2]
HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def sharded(model: nn.Module, reshard: bool = True, policy: MixedPrecisionPolicy = HALF) -> nn.Module:
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy, reshard_after_forward=reshard)
    return fully_shard(model, mp_policy=policy)  # the rest: embedding, last norm, head


def blocks_compiled(model: nn.Module) -> nn.Module:
    for layer in model.model.layers:
        layer.compile(dynamic=False)
    return model


def blocks_then_shard(model: nn.Module) -> nn.Module:
    return sharded(blocks_compiled(model))


# --8<-- [end:fsdp2]


# --8<-- [start:strategies]
def ddp(model: nn.Module, **options: object) -> nn.Module:
    """Gradients stay in the buckets: without the view, each is copied there and back."""
    return DistributedDataParallel(model, gradient_as_bucket_view=True, **options)


def blocks_then_ddp(model: nn.Module) -> nn.Module:
    return ddp(blocks_compiled(model))


def uncut_blocks_then_ddp(model: nn.Module) -> nn.Module:
    """DDPOptimizer would cut each block where a bucket is full, and keep what crosses a cut."""
    wrapped = blocks_then_ddp(model)
    wrapped.forward = torch._dynamo.config.patch(optimize_ddp=False)(wrapped.forward)
    return wrapped


def kept(model: nn.Module) -> nn.Module:
    return sharded(model, reshard=False)


# --8<-- [end:strategies]


# --8<-- [start:whole]
def shard_then_compile(model: nn.Module) -> nn.Module:
    return torch.compile(sharded(model), dynamic=False)


# --8<-- [end:whole]


# --8<-- [start:tensor-parallel]
def tensor_parallel(model: nn.Module) -> nn.Module:
    """Each matmul on all GPUs; between the matmuls, each GPU has its part of the sequence."""
    mesh = init_device_mesh("cuda" if GPU else "cpu", (dist.get_world_size(),))
    layer = {
        "input_layernorm": SequenceParallel(),
        "self_attn": PrepareModuleInput(  # gathered once, for three matmuls
            input_kwarg_layouts={"hidden_states": Shard(1)}, desired_input_kwarg_layouts={"hidden_states": Replicate()}
        ),
        "self_attn.[qkv]_proj": ColwiseParallel(),
        "self_attn.o_proj": RowwiseParallel(output_layouts=Shard(1)),
        "post_attention_layernorm": SequenceParallel(),
        "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(output_layouts=Shard(1)),
    }
    plan = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        **{f"model.layers.*.{name}": style for name, style in layer.items()},
        "model.norm": SequenceParallel(),
        "lm_head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, plan)
    model.lm_head.weight = model.model.embed_tokens.weight  # both were split alike: tie them again
    return model


# --8<-- [end:tensor-parallel]


# --8<-- [start:predict]
Messages = list[tuple[str, float]]


@dataclass
class Work:
    """What a GPU computes in one go; what must have arrived before it, and what it sends after it."""

    compute: float  # seconds
    gather: Messages = field(default_factory=list)
    reduce: Messages = field(default_factory=list)


def timeline(works: Sequence[Work], rates: Rates, overlap: bool = True) -> float:
    """Seconds of a step beyond its compute. Gathers run one unit ahead, reductions behind, one message at a time."""
    took = [[sum(seconds(*message, rates) for message in m) for m in (work.gather, work.reduce)] for work in works]
    if not overlap:
        return sum(map(sum, took))
    arrived = link = took[0][0]
    now = 0.0
    for i, (work, (_, reduce)) in enumerate(zip(works, took, strict=True)):
        start = max(now, arrived)
        if i + 1 < len(works) and took[i + 1][0]:
            link = arrived = max(link, start) + took[i + 1][0]
        now = start + work.compute
        if reduce:
            link = max(link, now) + reduce
    return max(now, link) - sum(work.compute for work in works)


def buckets(parts: Sequence[Sequence[int]], cap: float = 25 * MIB) -> list[Messages]:
    """What DDP sends after each part of the backward: it closes a bucket as soon as it has bucket_cap_mb."""
    sent_after: list[Messages] = []
    filled = 0.0
    for part in parts:
        messages: Messages = []
        for size in part:
            filled += size
            if filled >= cap:
                messages.append(("all-reduce", filled))
                filled = 0
        sent_after.append(messages)
    if filled:
        sent_after[-1].append(("all-reduce", filled))
    return sent_after


# --8<-- [end:predict]


# --8<-- [start:bytes]
@dataclass
class Shape:
    """Numbers of elements, and of tokens on all GPUs together."""

    layers: list[list[int]]  # of each parameter, layer by layer
    root: int  # what is in no layer: the tied embedding and the last norm
    tokens: int
    width: int

    @property
    def elements(self) -> int:
        return sum(map(sum, self.layers)) + self.root


def shape_of(model: nn.Module, tokens: int) -> Shape:
    layers = [[p.numel() for p in layer.parameters()] for layer in model.model.layers]
    root = sum(p.numel() for p in model.parameters()) - sum(map(sum, layers))
    return Shape(layers, root, tokens, model.config.hidden_size)


def ddp_works(shape: Shape, forward: Sequence[float], backward: Sequence[float]) -> list[Work]:
    """Gradients in fp32, from the last layer to the first. The tied embedding's gradient is complete last."""
    reduces = buckets(gradients(shape))
    return [Work(sum(forward)), *(Work(took, reduce=m) for took, m in zip([*backward, 0], [[], *reduces], strict=True))]


def gradients(shape: Shape) -> list[list[int]]:
    """Bytes in the order of the backward."""
    return [*([4 * size for size in reversed(layer)] for layer in reversed(shape.layers)), [4 * shape.root]]


def sharded_works(
    shape: Shape, forward: Sequence[float], backward: Sequence[float], reshard: bool = True
) -> list[Work]:
    """Parameters are gathered in bf16, once or twice; gradients are reduced in fp32, each GPU keeps its part."""
    sizes = [sum(layer) for layer in shape.layers]
    gathers: list[Messages] = [[("all-gather", 2 * size)] for size in sizes]
    again = gathers if reshard else [[] for _ in sizes]
    reduces: list[Messages] = [[("reduce-scatter", 4 * size)] for size in sizes]
    return [
        Work(0, gather=[("all-gather", 2 * shape.root)]),
        *(Work(took, gather=gather) for took, gather in zip(forward[:-1], gathers, strict=True)),
        Work(forward[-1]),
        Work(backward[0]),
        *map(Work, backward[1:], reversed(again), reversed(reduces)),
        Work(0, reduce=[("reduce-scatter", 4 * shape.root)]),
    ]


def kept_works(shape: Shape, forward: Sequence[float], backward: Sequence[float]) -> list[Work]:
    return sharded_works(shape, forward, backward, reshard=False)


def tensor_works(shape: Shape, forward: Sequence[float], backward: Sequence[float]) -> list[Work]:
    """Under autocast, norms give fp32 and matmuls bf16. Each part of a layer gathers before and reduces after."""
    norm, matmul, token = 4 * shape.tokens * shape.width, 2 * shape.tokens * shape.width, 4 * shape.tokens
    gains = ("all-reduce", 4 * shape.width)  # a norm's weight is whole on each GPU, its gradient a sum over them
    ahead: Messages = [("all-gather", norm), ("reduce-scatter", matmul)]
    back: Messages = [("all-gather", matmul), ("reduce-scatter", norm), gains]
    head: Messages = [("all-gather", norm), *[("all-reduce", token)] * 3]  # the loss: largest, sum, target's logit
    return [
        Work(0, reduce=[("reduce-scatter", norm)]),
        *(Work(took, ahead, ahead) for took in forward[:-1]),
        Work(forward[-1], head),
        Work(backward[0], reduce=[("reduce-scatter", norm), gains]),
        *(Work(took, back, back) for took in backward[1:]),
        Work(0, gather=[("all-gather", norm)]),
    ]


# --8<-- [end:bytes]


@dataclass(frozen=True)
class Strategy:
    make: Callable[[nn.Module], nn.Module]
    works: Callable[[Shape, Sequence[float], Sequence[float]], list[Work]] | None = None  # what n GPUs do, if predicted
    autocast: bool = True  # else FSDP casts the parameters, or they are bf16 (one GPU)
    sizes: Mapping[str, float] = field(default_factory=lambda: SIZES)
    batch: int = BATCH


def alone(model: nn.Module) -> nn.Module:
    return model


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, dynamic=False)


def in_bf16(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    return model


EAGER = {
    "one GPU": Strategy(alone),
    "DDP": Strategy(ddp, ddp_works),
    "FSDP2": Strategy(sharded, sharded_works, autocast=False),
    "FSDP2, no reshard": Strategy(kept, kept_works, autocast=False),
    "tensor + sequence": Strategy(tensor_parallel, tensor_works),
}
STRATEGIES = EAGER | {  # in the order of measuring: what is compiled takes longest
    "one GPU, large": Strategy(alone, sizes=LARGE, batch=1),
    "FSDP2, large": Strategy(sharded, autocast=False, sizes=LARGE, batch=1),
    "one GPU, blocks": Strategy(blocks_compiled),
    "blocks, DDP": Strategy(blocks_then_ddp, ddp_works),
    "uncut blocks, DDP": Strategy(uncut_blocks_then_ddp, ddp_works),
    "blocks, FSDP2": Strategy(blocks_then_shard, sharded_works, autocast=False),
    "one GPU, bf16, whole": Strategy(lambda model: compiled(in_bf16(model)), autocast=False),
    "FSDP2, whole": Strategy(shard_then_compile, sharded_works, autocast=False),
}


def names_for(gpus: int) -> list[str]:
    """What one GPU or more run. What is compiled runs on one and on two; on a CPU, nothing is."""
    every = STRATEGIES if GPU and gpus <= 2 else EAGER
    one = {name for name in every if name.startswith("one GPU")}
    return [name for name in every if name not in ({"FSDP2, large"} if gpus == 1 else one)]


def measure(name: str, rank: int, device: torch.device, folder: str) -> dict:
    strategy, n = STRATEGIES[name], dist.get_world_size()
    torch.manual_seed(0)
    before, began = allocated(), time.perf_counter()
    model = say_causal(make_model(strategy.sizes, device, torch.float32))
    batch = strategy.batch * (n if strategy.make is tensor_parallel else 1)  # all its GPUs work on the same tokens
    result: dict[str, Any] = {"shape": vars(shape_of(model, batch * LENGTH))}
    wrapped = strategy.make(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    torch.manual_seed(0 if strategy.make is tensor_parallel else 1 + rank)
    tokens = torch.randint(SIZES["vocab_size"], (batch, LENGTH), device=device)
    positions = torch.arange(LENGTH, device=device)[None]
    split = loss_parallel if strategy.make is tensor_parallel else nullcontext

    def step() -> list:
        marks = [moment()]
        with split():
            with torch.autocast(device.type, torch.bfloat16, enabled=strategy.autocast):
                loss = wrapped(input_ids=tokens, labels=tokens, position_ids=positions).loss
            marks.append(moment())
            loss.backward()
        marks.append(moment())
        result["gradients"] = nbytes(p.grad for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        return [*marks, moment()]

    for i in range(WARM):
        step()
        synchronize()
        if not i:
            result["first"] = time.perf_counter() - began
    if GPU:
        torch.cuda.reset_peak_memory_stats()
    marks = [step() for _ in range(STEPS)]
    synchronize()
    for part, (i, j) in {"forward": (0, 1), "backward": (1, 2), "update": (2, 3)}.items():
        result[part] = statistics.median(between(m[i], m[j]) for m in marks)
    result["step"] = between(marks[0][0], marks[-1][-1]) / STEPS
    result["peak"] = torch.cuda.max_memory_allocated() - before if GPU else 0
    result["parameters"] = nbytes(model.parameters())
    result["state"] = nbytes(t for s in optimizer.state.values() for t in s.values() if t.dim())
    result |= traced(step, Path(folder) / f"{rank}.json")
    return result


# --8<-- [start:base]
def predict(name: str, base: Mapping[str, Any], rates: Rates, n: int) -> dict:
    """All that a run on n GPUs will take, from the same program on one GPU."""
    strategy, shape = STRATEGIES[name], Shape(**base["shape"])
    tensor, whole = strategy.works is tensor_works, strategy.works is ddp_works
    share = 1 if whole else 1 / n  # of parameters, gradients, state and update that each GPU has
    shape.tokens *= n if tensor else 1  # all GPUs work on the same tokens
    costs = [*map(sum, shape.layers), shape.root]  # matmuls take a time in proportion to their weights
    forward = [base["forward"] * cost / sum(costs) for cost in costs]
    backward = [base["backward"] * cost / sum(costs) for cost in reversed(costs)]
    assert strategy.works
    works = strategy.works(shape, forward, backward)
    messages = [message for work in works for message in (*work.gather, *work.reduce)]
    exposes = timeline(works, rates, overlap=not tensor)
    own, split = base["parameters"] * share, 1 - 1 / n
    held = own if whole else 0  # DDP's buckets stay; other gradients are gone when activations are largest
    rest = base["peak"] - base["parameters"] - base["state"] - held
    if tensor:  # norms are not split; five matmuls of a layer keep gathered inputs, and all keep split weights, in bf16
        own += 4 * shape.width * (2 * len(shape.layers) + 1) * split
        rest += 2 * (shape.tokens * shape.width * (5 * len(shape.layers) + 1) - shape.elements) * split
    return {
        "messages": messages,
        "communication": sum(seconds(*message, rates) for message in messages),
        "exposed": exposes,
        "step": base["forward"] + base["backward"] + base["update"] * share + exposes,
        "parameters": own,
        "gradients": own,
        "state": 2 * own,
        "rest": rest,
        "peak": 3 * own + held + rest,
    }


# --8<-- [end:base]


def error(predicted: float, measured: float) -> str:
    return f"{100 * (predicted / measured - 1):+.0f}%" if measured else "-"


def pair(predicted: float, measured: float, unit: float, digits: int = 1) -> str:
    both = (format(seconds / unit, f"7.{digits}f") for seconds in (predicted, measured))
    return " ".join((*both, error(predicted, measured).rjust(5)))


def say_runs(runs: dict, n: int) -> None:
    print("==== runs\nmeasured: a step, the peak of memory, what a GPU sends, the first step\n")
    for name, run in runs.items():
        size = sum(sent(*message, n) for message in run["messages"]) / 1e9
        shown = f"{run['step'] * 1e3:6.1f} ms {run['peak'] / GIB:5.1f} GiB {size:5.2f} GB {run['first']:4.0f} s"
        print(f"{name + ':':27} {shown}")


def say_bytes(names: Sequence[str], runs: dict, predictions: dict, n: int) -> None:
    unit, digits, label = (1e6, 3, "MB") if GPU else (1, 0, "bytes")
    print(f"==== bytes\n{label} that each of {n} processes sends in a step\n")
    print(f"{'':20} {'predicted':>9} {'counted':>9} {'error':>5}   {'messages':>8} {'counted':>8}")
    for name in names:
        both = [sum(sent(*m, n) for m in run[name]["messages"]) for run in (predictions, runs)]
        counts = [len(run[name]["messages"]) for run in (predictions, runs)]
        sizes = " ".join(format(size / unit, f"9.{digits}f") for size in both)
        print(f"{name:20} {sizes} {error(*both):>5}   {counts[0]:8} {counts[1]:8}")


def say_times(names: Sequence[str], bases: dict, runs: dict, predictions: dict) -> None:
    print("==== time\nms of a step on one GPU; on two, predicted, measured and error\n")
    print(f"{'':20} {'one GPU':>7} {'NCCL':^21} {'exposed':^21} {'step':^21}")
    for name in names:
        guess, run = predictions[name], runs[name]
        cells = (pair(guess[part], run[part], 1e-3) for part in ("communication", "exposed", "step"))
        print(f"{name:20} {bases[name]['step'] * 1e3:7.1f} {' '.join(cells)}")


def say_parts(runs: dict) -> None:
    print("==== parts\nms of a traced step, by what the GPU runs; the step without a trace\n")
    print(f"{'':26} {'matmuls':>8} {'other':>8} {'exposed':>8} {'idle':>8} {'sum':>8} {'step':>8}")
    for name, run in runs.items():
        cells = (*run["parts"].values(), sum(run["parts"].values()), run["step"])
        print(f"{name:26} {' '.join(f'{cell * 1e3:8.1f}' for cell in cells)}")


def say_memory(names: Sequence[str], runs: dict, predictions: dict) -> None:
    unit, label = (GIB, "GiB") if GPU else (MIB, "MiB")
    print(f"==== memory\n{label} of one of the GPUs, predicted and measured; the peak with its error\n")
    print(f"{'':20} {'parameters':^13} {'gradients':^13} {'state':^13} {'the rest':^13} {'peak':^22}")
    for name in names:
        run, guess = runs[name], predictions[name]
        held = guess["peak"] - guess["rest"] - guess["parameters"] - guess["state"]
        run["rest"] = run["peak"] - run["parameters"] - run["state"] - held
        shown = ("parameters", "gradients", "state", "rest")[: None if GPU else 3]  # a CPU has no peak to read
        parts = [f"{guess[part] / unit:6.2f} {run[part] / unit:6.2f}" for part in shown]
        print(f"{name:20} {' '.join(parts)} {pair(guess['peak'], run['peak'], unit) if GPU else ''}".rstrip())


# --8<-- [start:scale]
NVLINK = 450e9  # bytes/s in each direction: NVIDIA H100 datasheet, 900 GB/s both ways
NETWORK = 8 * 400e9 / 8  # DGX H100 user guide: eight 400 Gb/s adapters for eight GPUs


def scaled(name: str, base: dict, rates: Rates, gpus: int, n: int) -> tuple[float, float]:
    """Bytes that each GPU sends, and the seconds of a step, if links are used as well as here."""
    link = NVLINK if gpus <= 8 else min(NVLINK, NETWORK)
    slower = dict(rates)
    for operation in OPERATIONS[:3]:
        times = sent(operation, 1, gpus) / sent(operation, 1, n) * NVLINK / link
        slower[operation] = {size: took * times for size, took in rates[operation].items()}
    guess = predict(name, base, slower, gpus)
    return sum(sent(*message, gpus) for message in guess["messages"]), guess["step"]


# --8<-- [end:scale]


def say_scale(bases: dict, rates: Rates, n: int) -> None:
    print("==== scale\ncomputed: GB that each GPU sends, ms of a step, share of n times one GPU\n")
    for name in [name for name in ("DDP", "blocks, DDP", "FSDP2", "blocks, FSDP2") if name in bases]:
        cells = []
        for gpus in (2, 8, 64):
            size, took = scaled(name, bases[name], rates, gpus, n)
            cells.append(f"{gpus:3} GPUs {size / 1e9:6.2f} {took * 1e3:7.1f} {bases[name]['step'] / took:5.0%}")
        print(f"{name:20} {'   '.join(cells)}")


def say_more(found: dict[int, dict]) -> None:
    """More GPUs than two, where there are: predicted from one of them, and measured."""
    print("==== more\nGB that each GPU sends, counted; ms of a step, predicted, measured and error; GiB at its peak\n")
    for n, each in found.items():
        for name in [name for name in predictable(found, n) if name in EAGER]:
            run, guess = each["runs"][name], predict(name, found[1]["runs"][name], each["rates"], n)
            size = sum(sent(*message, n) for message in run["messages"]) / 1e9
            step = pair(guess["step"], run["step"], 1e-3)
            print(f"{n} GPUs, {name:20} {size:6.2f} {step} {run['peak'] / GIB:6.1f}")


def say_rates(rates: Rates, n: int) -> None:
    print(f"==== rates\nGB/s that each of {n} GPUs sends, by message size\n")
    print(f"{'MiB':>16} {' '.join(f'{size / MIB:8.4g}' for size in SWEEP)}")
    for operation in OPERATIONS[:3]:
        cells = (f"{sent(operation, size, n) / rates[operation][size] / 1e9:8.1f}" for size in SWEEP)
        print(f"{operation:16} {' '.join(cells)}")


def predictable(found: dict[int, dict], n: int) -> list[str]:
    """What was measured on n GPUs and, to predict it, on one."""
    return [name for name in found[n]["runs"] if STRATEGIES[name].works and name in found[1]["runs"] and n > 1]


def say_early(found: dict[int, dict]) -> None:
    """Of GPUs: what is complete as soon as two of them have so many runs; they come last."""
    done = len(found[2]["runs"]) + len(found[2]["failed"])
    if not done:
        say_rates(found[2]["rates"], 2)
    elif done == len(EAGER) - 1 and len(found) > 2:
        say_more(found)


def say(found: dict[int, dict]) -> None:
    """All that compares runs, of those that there are."""
    n, bases, (runs, rates) = 2, found[1]["runs"], (found[2]["runs"], found[2]["rates"])
    names = predictable(found, n)
    predictions = {name: predict(name, bases[name], rates, n) for name in names}
    say_bytes(names, runs, predictions, n)
    say_memory(names, runs, predictions)
    if GPU:  # two processes of one CPU take a time that says nothing about two GPUs
        every = {name if name.startswith("one GPU") else f"{name}, on one": run for name, run in bases.items()} | runs
        say_runs(every, n)
        say_times(names, bases, runs, predictions)
        say_parts(every)
        say_scale(bases, rates, n)
        print(f"==== record\n{json.dumps({'rates': rates, 'bases': unsent(bases), 'runs': unsent(runs)})}")
    failed = {f"{name}, {n} GPUs": why for n, each in found.items() for name, why in each["failed"].items()}
    if failed:
        print("==== failed", *(f"{name}: {why}" for name, why in failed.items()), sep="\n")


def unsent(runs: Mapping[str, dict]) -> dict[str, dict]:
    """All that is known of runs but their messages."""
    return {name: {part: value for part, value in run.items() if part != "messages"} for name, run in runs.items()}


def measured(names: Sequence[str], rank: int, device: torch.device) -> Iterator[dict]:
    """Seconds of a collective by bytes; then each strategy that succeeds, or why it did not."""
    if dist.get_world_size() > 1:
        yield {"rates": measured_rates(OPERATIONS[:3], SWEEP, torch.float32)}
    with TemporaryDirectory() as folder:
        for name in names:
            began = time.perf_counter()
            try:
                nothing_left()
                part = {"runs": {name: measure(name, rank, device, folder)}}
            except RuntimeError as error:  # the others still run
                part = {"failed": {name: ". ".join(str(error).splitlines()[0].split(". ")[:2])}}
            torch._dynamo.reset()
            if not rank:
                print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
            yield part


def by_size(rates: Mapping[str, Mapping[str, float]]) -> Rates:
    """Rates that were written as JSON, whose keys are strings."""
    return {operation: {int(size): took for size, took in row.items()} for operation, row in rates.items()}


def unknown() -> dict[str, dict]:
    return {"rates": {}, "runs": {}, "failed": {}}


def add(found: dict[str, dict], part: Mapping[str, dict]) -> None:
    """What `measured` has given to what it gave before."""
    for kind, each in part.items():
        found[kind] |= by_size(each) if kind == "rates" else each


def main() -> None:
    """One GPU and two run all strategies, more of them those that need no compiler; CPU processes, too.

    A section is printed when all that it shows is measured. A run that SIGINT cuts off prints what it has.
    """
    if "RANK" in os.environ:
        among_ranks(partial(tell, partial(measured, names_for(int(os.environ["WORLD_SIZE"])))))
        return
    found = {n: unknown() for n in (1, *worlds())}
    try:
        for n in sorted(found, key=lambda n: (n != 1, -n)):  # one predicts the others; two run what is compiled
            for part in told("snippets.examples.multi_gpu", n):
                add(found[n], part)
                if GPU and n == 2:
                    say_early(found)
                    sys.stdout.flush()
    finally:
        say(found)


if __name__ == "__main__":
    main()

"""What hides communication behind the backward, what accumulation saves, and what a reduction in bf16 costs.

It needs transformers (5.17). `python -m snippets.examples.multi_gpu_overlap` starts torchrun itself, on all GPUs, or
with gloo on two CPU processes and a tiny model.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from snippets.examples.multi_gpu_accumulate import Case, distance, measure
from snippets.examples.multi_gpu_ranks import GIB, GPU, among_ranks, tell, told
from snippets.examples.multi_gpu_strategies import HALF, ddp, kept, sharded
from snippets.reference.communication import sent, worlds

MICRO = 4


def root_only(model: nn.Module) -> nn.Module:
    """One group of all parameters: everything is gathered before the first layer, and reduced after the last."""
    return fully_shard(model, mp_policy=HALF)


# --8<-- [start:prefetch]
def prefetching(model: nn.Module, ahead: int = 2) -> nn.Module:
    """Ask for layers earlier than FSDP2 does by itself."""
    sharded(model)
    layers = list(model.model.layers)
    for i, layer in enumerate(layers):
        layer.set_modules_to_forward_prefetch(layers[i + 1 : i + 1 + ahead])
        layer.set_modules_to_backward_prefetch(layers[max(i - ahead, 0) : i][::-1])
    return model


# --8<-- [end:prefetch]


def in_bf16(model: nn.Module) -> nn.Module:
    return sharded(model, policy=MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.bfloat16))


def bucketed(cap: int) -> Callable[[nn.Module], nn.Module]:
    return lambda model: ddp(model, bucket_cap_mb=cap)


CASES: dict[str, dict[str, Case]] = {
    "overlap": {
        "DDP": (ddp, 1, True),
        "FSDP2, each layer": (sharded, 1, True),
        "FSDP2, root only": (root_only, 1, True),
    },
    "buckets": {f"bucket_cap_mb={cap}": (bucketed(cap), 1, True) for cap in (1, 100, 400)},
    "prefetch": {"FSDP2, no reshard": (kept, 1, True), "FSDP2, two ahead": (prefetching, 1, True)},
    "accumulation": {
        "DDP, each": (ddp, MICRO, False),
        "DDP, no_sync": (ddp, MICRO, True),
        "FSDP2, each": (sharded, MICRO, False),
        "FSDP2, last only": (sharded, MICRO, True),
    },
    "precision": {"FSDP2, fp32": (sharded, 1, True), "FSDP2, bf16": (in_bf16, 1, True)},
}


def measured(sections: Iterable[str], rank: int, device: torch.device) -> Iterator[dict[str, dict]]:
    """All cases of the sections, one by one."""
    reference: list[Tensor] = []
    with TemporaryDirectory() as folder:
        for section in sections:
            for name, case in CASES[section].items():
                began = time.perf_counter()
                result, gradients = measure(case, rank, device, Path(folder) / f"{rank}.json")
                if section == "precision":
                    reference = reference or gradients
                    result["distance"] = distance(gradients, reference)
                if not rank:
                    print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
                yield {name: result}


def say(section: str, found: dict[str, dict], n: int) -> None:
    """Times and memory are a GPU's: what two processes of one CPU take says nothing about one."""
    unit, digits, label = (1e6, 2, "MB sent") if GPU else (1, 0, "bytes sent")
    times = f" {'step ms':>9} {'NCCL ms':>9} {'exposed ms':>11} {'peak GiB':>9}" if GPU else ""
    last = f" {'distance':>9}" if section == "precision" else ""
    print(f"==== {section}\n{'':20} {label:>10} {'messages':>9}{times}{last}")
    for name in CASES[section]:
        run = found[name]
        size = sum(sent(*message, n) for message in run["messages"]) / unit
        line = f"{name:20} {format(size, f'10.{digits}f')} {len(run['messages']):9}"
        if GPU:
            line += f" {run['step'] * 1e3:9.1f} {run['communication'] * 1e3:9.1f} {run['exposed'] * 1e3:11.1f}"
            line += f" {run['peak'] / GIB:9.1f}"
        print(line + (f" {run['distance']:9.1e}" if section == "precision" else ""), flush=True)


def main() -> None:
    if "RANK" in os.environ:
        among_ranks(partial(tell, partial(measured, CASES)))
        return
    found: dict[str, dict] = {}
    ends = {list(cases)[-1]: section for section, cases in CASES.items()}
    for part in told("snippets.examples.multi_gpu_overlap", worlds()[0]):
        found |= part
        for name in part.keys() & ends.keys():
            say(ends[name], found, worlds()[0])


if __name__ == "__main__":
    main()

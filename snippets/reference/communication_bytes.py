"""The bytes that a training step sends, by formula and counted: DDP, FSDP2, HSDP, tensor, sequence, context parallel.

Run `python -m snippets.reference.communication_bytes`: four processes on the CPU count a small model's collectives.
"""

import gc
import os
from collections.abc import Callable

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from snippets.reference.communication import joined, sent, torchrun
from snippets.reference.communication_bytes_count import Sent
from snippets.reference.communication_bytes_steps import (
    BATCH,
    HEAD,
    KV_HEADS,
    LAYERS,
    LENGTH,
    RANKS,
    WIDTH,
    layered,
    make_model,
    numbers,
    ring,
    sequence_plan,
    sharded,
    tensor_plan,
    trains,
)

Bytes = dict[str, float]  # what leaves a rank in one training step, by operation
BF16, FP32 = 2, 4  # bytes of a number


# --8<-- [start:formulas]
def ddp(parameters: int, ranks: int, size: int = FP32) -> Bytes:
    """Every gradient is all-reduced once; `size`: bytes of one gradient, which has the parameter's dtype."""
    return {"all-reduce": sent("all-reduce", size * parameters, ranks)}


def fsdp2(
    blocks: int, root: int, ranks: int, reshard: bool | int | None = None, size: int = BF16, reduce: int = FP32
) -> Bytes:
    """`blocks` and `root`: parameters that fully_shard was given with each block, and with the model around them.

    `reshard` is `reshard_after_forward` of all calls; `size` and `reduce` are bytes of param_dtype and reduce_dtype.
    """
    again = {None: blocks, True: blocks + root, False: 0}.get(reshard, blocks + root)  # gathered for the backward, too
    among = ranks if reshard is None or isinstance(reshard, bool) else reshard
    gathered = sent("all-gather", size * (blocks + root), ranks) + sent("all-gather", size * again, among)
    return {"all-gather": gathered, "reduce-scatter": sent("reduce-scatter", reduce * (blocks + root), ranks)}


# --8<-- [end:formulas]


def hsdp(blocks: int, root: int, replicas: int, shards: int, size: int = BF16, reduce: int = FP32) -> Bytes:
    """FSDP2 within `shards` ranks; each shard's gradient is then all-reduced among `replicas`."""
    reduced = sent("all-reduce", reduce * (blocks + root) / shards, replicas)
    return fsdp2(blocks, root, shards, None, size, reduce) | {"all-reduce": reduced}


def tensor_parallel(activation: int, layers: int, ranks: int, calls: int = 4) -> Bytes:
    """`activation`: bytes of a layer's input (batch, length, width). `calls`: all-reduces of a layer and its backward.

    They are 2 and 2; without PrepareModuleInput 2 and 5, as q, k, v, gate and up each reduce a gradient of their own.
    """
    return {"all-reduce": layers * calls * sent("all-reduce", activation, ranks)}


def sequence_parallel(activation: int, layers: int, ranks: int) -> Bytes:
    """Each all-reduce of tensor parallel becomes a reduce-scatter and an all-gather."""
    return {name: layers * 4 * sent(name, activation, ranks) for name in ("all-gather", "reduce-scatter")}


def context_parallel(keys: int, layers: int, ranks: int, size: int = BF16) -> Bytes:
    """`keys`: numbers in all keys of a layer (batch, heads of keys, length, head); values have as many.

    Keys and values are gathered in forward and backward. Their fp32 gradients go around the ring, a shard at a time.
    """
    gathered = 2 * sent("all-gather", 2 * keys * size, ranks)
    return {"all-gather": layers * gathered, "all-to-all": layers * 2.0 * keys * FP32}


def strategies(ranks: int) -> dict[str, tuple[Bytes, Callable[[], None]]]:
    """By name: the formula's bytes, and a step that sends them."""
    model = make_model()
    every, blocks = numbers(model), sum(numbers(block) for block in list(model)[1:-1])
    root, activation = every - blocks, BATCH * LENGTH * WIDTH * FP32
    flat = init_device_mesh("cpu", (ranks,))
    square = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicas", "shards"))
    found = {"DDP": (ddp(every, ranks), trains(DistributedDataParallel(model)))}
    for reshard in (None, True, False, *([2] if ranks > 2 else [])):
        found[f"FSDP2, reshard {reshard}"] = fsdp2(blocks, root, ranks, reshard), sharded(reshard, flat)
    found["HSDP"] = hsdp(blocks, root, 2, ranks // 2), sharded(None, square)
    for name, prepared, calls in (("tensor", True, 4), ("tensor, inputs unprepared", False, 7)):
        plan = lambda prepared=prepared: tensor_plan(prepared)  # noqa: E731
        found[name] = tensor_parallel(activation, LAYERS, ranks, calls), layered(plan, LENGTH, flat)
    found["sequence"] = (
        sequence_parallel(activation, LAYERS, ranks),
        layered(sequence_plan, LENGTH // ranks, flat),
    )
    found["context"] = context_parallel(BATCH * KV_HEADS * LENGTH * HEAD, LAYERS, ranks), ring(ranks)
    return found


def counted(step: Callable[[], None]) -> Bytes:
    """Of the third step: in the second one, DDP broadcasts its new buckets."""
    for _ in range(3):
        with Sent() as found:
            step()
    return dict(found.bytes)


def report(ranks: int) -> str:
    """Each strategy's bytes, by formula and counted."""
    lines = ["==== counted", f"{f'{ranks} ranks':27}{'operation':16}{'formula':>9}{'counted':>9}"]
    for name, (formula, step) in strategies(ranks).items():
        found = counted(step)
        for at, operation in enumerate(sorted({*formula, *found})):
            first, bytes_ = ("" if at else name), (formula.get(operation, 0), found.get(operation, 0))
            lines.append(f"{first:27}{operation:16}{bytes_[0]:9.0f}{bytes_[1]:9} bytes")
    return "\n".join(lines)


def main() -> None:
    """What torchrun starts: rank 0 prints."""
    joined("gloo")
    found = report(dist.get_world_size())
    if dist.get_rank() == 0:
        print(found, flush=True)
    gc.collect()  # a group that outlives the next line ends the process with an error
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main() if "RANK" in os.environ else print(torchrun(["-m", __spec__.name], RANKS), end="")

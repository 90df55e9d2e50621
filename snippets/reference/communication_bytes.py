"""The bytes that a training step sends, by formula and counted: DDP, FSDP2, HSDP, tensor, sequence, context parallel.

Run `python -m snippets.reference.communication_bytes`: four processes on the CPU count a small model's collectives.
"""

import gc
import os
from collections import Counter
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from snippets.reference.communication import joined, sent, torchrun

Bytes = dict[str, float]  # what leaves a rank in one training step, by operation
BF16, FP32 = 2, 4  # bytes of a number

# the small model that is counted
RANKS, LAYERS, BATCH, LENGTH, VOCABULARY = 4, 3, 2, 32, 256
WIDTH, HEADS, KV_HEADS, HEAD, MLP = 64, 8, 4, 8, 128
MIXED = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


# ---- formulas ------------------------------------------------------------------------------------------------------


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


# ---- counting ------------------------------------------------------------------------------------------------------


# --8<-- [start:count]
class Sent(TorchDispatchMode):
    """`with Sent() as found: step()`: then `found.bytes` has what left this rank, by operation."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op.namespace in ("c10d", "_c10d_functional"):
            self.count(op._schema.name.partition("::")[2], args)
        return op(*args, **(kwargs or {}))

    def count(self, name: str, args: tuple) -> None:
        if name.startswith(("allreduce", "all_reduce")):
            tensors = args[0] if isinstance(args[0], list) else [args[0]]
            self.add("all-reduce", sum(x.nbytes for x in tensors), ranks_of(args))
        elif name.startswith(("_allgather_base", "all_gather_into")):
            ranks = ranks_of(args)
            self.add("all-gather", args[1 if name[0] == "_" else 0].nbytes * ranks, ranks)
        elif name.startswith(("_reduce_scatter_base", "reduce_scatter_tensor")):
            self.add("reduce-scatter", args[1 if name[0] == "_" else 0].nbytes, ranks_of(args))
        elif name.startswith("broadcast"):
            self.add("broadcast", args[0][0].nbytes, ranks_of(args))
        elif name in ("alltoall_base_", "all_to_all_single"):
            whole, splits = (args[1], args[4]) if name[-1] == "_" else (args[0], args[2])
            kept = splits[dist.get_rank()] / sum(splits) if splits else 1 / ranks_of(args)  # the part that stays here
            self.bytes["all-to-all"] += round(whole.nbytes * (1 - kept))
        elif name == "send":
            self.add("send/recv", args[0][0].nbytes, 2)
        elif name not in ("wait_tensor", "_wrap_tensor_autograd", "recv_", "barrier"):
            raise NotImplementedError(f"expected a collective that this mode counts, got {name}")

    def add(self, operation: str, nbytes: int, ranks: int) -> None:
        self.bytes[operation] += round(sent(operation, nbytes, ranks))


def ranks_of(args: tuple) -> int:
    """The size of the group among a collective's arguments, which have it as an object or by name."""
    for each in args:
        if isinstance(each, torch.ScriptObject) and "ProcessGroup" in str(each._type()):
            return dist.ProcessGroup.unbox(each).size()
    return dist.distributed_c10d._resolve_process_group(args[-1]).size()


# --8<-- [end:count]


# ---- a small model -------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.o = nn.Linear(WIDTH, HEADS * HEAD, bias=False), nn.Linear(HEADS * HEAD, WIDTH, bias=False)
        self.k, self.v = (nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for part in (self.q, self.k, self.v))
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(found.transpose(1, 2).flatten(2))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, MLP, bias=False) for _ in range(2))
        self.down = nn.Linear(MLP, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = nn.RMSNorm(WIDTH), Attention(), nn.RMSNorm(WIDTH), Gated()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    inner = [Block() for _ in range(LAYERS)]
    return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *inner, nn.Linear(WIDTH, VOCABULARY, bias=False))


def numbers(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def trains(model: Callable[[Tensor], Tensor]) -> Callable[[], None]:
    return lambda: model(torch.randint(VOCABULARY, (BATCH, LENGTH))).float().sum().backward()


# ---- its steps -----------------------------------------------------------------------------------------------------


def sharded(reshard: bool | int | None, mesh: DeviceMesh) -> Callable[[], None]:
    model = make_model()
    for block in list(model)[1:-1]:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard, mp_policy=MIXED)
    return trains(fully_shard(model, mesh=mesh, reshard_after_forward=reshard, mp_policy=MIXED))


# --8<-- [start:tensor]
def tensor_plan(prepared: bool) -> dict:
    """For parallelize_module of a block; `prepared`: a block's linear layers share one input."""
    linear = {f"attention.{name}": ColwiseParallel() for name in "qkv"} | {"attention.o": RowwiseParallel()}
    linear |= {"mlp.gate": ColwiseParallel(), "mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel()}
    whole = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
    return linear | ({"attention": whole, "mlp": whole} if prepared else {})


# --8<-- [end:tensor]


def sequence_plan() -> dict:
    whole = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    ends = {name: RowwiseParallel(output_layouts=Shard(1)) for name in ("attention.o", "mlp.down")}
    inputs = {"attention": whole, "mlp": whole, "norm1": SequenceParallel(), "norm2": SequenceParallel()}
    return tensor_plan(prepared=False) | ends | inputs


def layered(plan: Callable[[], dict], length: int, mesh: DeviceMesh) -> Callable[[], None]:
    """A step of the blocks alone; `length`: how much of the sequence this rank has."""
    inner = nn.Sequential(*list(make_model())[1:-1])
    for block in inner:
        parallelize_module(block, mesh, plan())
    return lambda: inner(torch.randn(BATCH, length, WIDTH, requires_grad=True)).sum().backward()


def ring(ranks: int) -> Callable[[], None]:
    """The collectives of torch's ring attention around an attention that computes nothing."""
    from torch.distributed.tensor.experimental._context_parallel import _attention as torch_s

    q = torch.randn(BATCH, KV_HEADS, LENGTH // ranks, HEAD, dtype=torch.bfloat16)
    made = {"query": q, "key": q, "value": q, "is_causal": True}

    def forward(q: Tensor, *_: Tensor, **__: object) -> tuple[Tensor, ...]:
        return q.clone(), q.new_zeros(q.shape[:-1], dtype=torch.float32)

    def backward(query: Tensor, key: Tensor, value: Tensor, **_: object) -> tuple[Tensor, ...]:
        return query.float(), key.float(), value.float()

    def step() -> None:
        for _ in range(LAYERS):
            out, lse = torch_s._templated_ring_attention(dist.group.WORLD, 2, forward, **made)
            more = {"grad_out": q, "grad_out_name": "grad_out", "out": out, "logsumexp": lse}
            torch_s._templated_ring_attention_backward(dist.group.WORLD, 2, backward, **made, **more)

    return step


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

"""A small model, and a training step of it by each strategy."""

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

# the small model that is counted
RANKS, LAYERS, BATCH, LENGTH, VOCABULARY = 4, 3, 2, 32, 256
WIDTH, HEADS, KV_HEADS, HEAD, MLP = 64, 8, 4, 8, 128
MIXED = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


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

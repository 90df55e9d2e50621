"""The messages that each strategy sends, from the numbers of elements."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from snippets.examples.llama_model import LLAMA, TINY
from snippets.examples.multi_gpu_ranks import GPU
from snippets.examples.multi_gpu_strategies import (
    blocks_compiled,
    blocks_then_ddp,
    blocks_then_shard,
    ddp,
    kept,
    shard_then_compile,
    sharded,
    tensor_parallel,
    uncut_blocks_then_ddp,
)
from snippets.examples.multi_gpu_timeline import Messages, Work, buckets


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


SIZES = (LLAMA if GPU else TINY | {"num_key_value_heads": 4}) | {"tie_word_embeddings": True}
BATCH, LENGTH = (4, 2048) if GPU else (2, 32)  # for each process
LARGE = SIZES | ({"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 24} if GPU else {})


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

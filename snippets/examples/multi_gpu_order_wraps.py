"""A tiny model, and each order in which to checkpoint, compile and wrap it."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from snippets.examples.llama_causal import say_causal
from snippets.examples.llama_model import TINY, make_model

WIDE = {"hidden_size": 128, "intermediate_size": 1024}  # several buckets of 1 MiB, the smallest that DDP compiles with
SIZES = TINY | WIDE | {"tie_word_embeddings": True, "num_key_value_heads": 4, "initializer_range": 0.02}
GRAPHS: list[torch.fx.GraphModule] = []


def counting(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable:
    """A backend that counts, and then leaves the code to PyTorch's operators."""
    from torch._dynamo.backends.debugging import aot_eager_decomp_partition

    GRAPHS.append(graph)
    return aot_eager_decomp_partition(graph, inputs)


def tiny() -> nn.Module:
    torch.manual_seed(0)
    return say_causal(make_model(SIZES, torch.device("cpu"), torch.float32))


def compiled(module: nn.Module) -> nn.Module:
    return torch.compile(module, backend=counting, dynamic=False)


def each(model: nn.Module, change: Callable[[nn.Module], object]) -> nn.Module:
    """What the change returns takes the layer's place; if it returns nothing, it has changed the layer."""
    layers = model.model.layers
    for i, layer in enumerate(layers):
        layers[i] = change(layer) or layer
    return model


def layer_compiled(layer: nn.Module) -> None:
    layer.compile(backend=counting, dynamic=False)


# --8<-- [start:orders]
def ddp(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=1)


def sharded(model: nn.Module) -> nn.Module:
    return fully_shard(each(model, fully_shard))


ORDERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "DDP, compile": lambda model: compiled(ddp(model)),
    "compile, DDP": lambda model: ddp(compiled(model)),
    "checkpoint, DDP, compile": lambda model: compiled(ddp(each(model, checkpoint_wrapper))),
    "compile blocks, DDP": lambda model: ddp(each(model, layer_compiled)),
    "compile blocks, FSDP2": lambda model: sharded(each(model, layer_compiled)),
    "FSDP2, compile blocks": lambda model: each(sharded(model), layer_compiled),
    "FSDP2, compile whole": lambda model: compiled(sharded(model)),
    "compile whole, FSDP2": lambda model: sharded(compiled(model)),
    "checkpoint, compile, FSDP2": lambda model: sharded(each(each(model, checkpoint_wrapper), layer_compiled)),
    "compile, checkpoint, FSDP2": lambda model: sharded(each(each(model, layer_compiled), checkpoint_wrapper)),
    "compile, FSDP2, checkpoint": lambda model: each(sharded(each(model, layer_compiled)), checkpoint_wrapper),
}
# --8<-- [end:orders]


def loss(wrapped: nn.Module, tokens: Tensor) -> Tensor:
    return wrapped(input_ids=tokens, labels=tokens).loss

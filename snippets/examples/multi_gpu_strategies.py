"""The ways to train on several GPUs: DDP, FSDP2, tensor and sequence parallel."""

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
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from snippets.examples.multi_gpu_ranks import GPU

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

"""Checkpoint a block, whole or all but its products, inside or outside the compiled function."""

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from snippets.compiler.training_model import Model, Run

aten = torch.ops.aten


# --8<-- [start:checkpointing]
def whole(block: nn.Module, x: Tensor) -> Tensor:
    """Keeps the block's input, and runs the block again in backward."""
    return checkpoint(block, x, use_reentrant=False)


PRODUCTS = [
    aten.mm.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
]


def selective(block: nn.Module, x: Tensor) -> Tensor:
    """As `whole`, but the results of products are kept."""
    return checkpoint(block, x, use_reentrant=False, context_fn=partial(create_selective_checkpoint_contexts, PRODUCTS))


def with_run(model: Model, run: Run) -> Model:
    """The same parameters, with its blocks run in another way."""
    other = copy.copy(model)
    other.run = run
    return other


# --8<-- [end:checkpointing]
# --8<-- [start:order]
def checkpoint_compiled(run: Run, block: nn.Module, compiler: Callable) -> Callable[[Tensor], Tensor]:
    """The checkpoint around the compiled block."""
    compiled = compiler(block)
    return lambda x: run(compiled, x)


def compile_checkpointed(run: Run, block: nn.Module, compiler: Callable) -> Callable[[Tensor], Tensor]:
    """The compiled function around the checkpoint."""
    return compiler(lambda x: run(block, x))


# --8<-- [end:order]

"""Selective checkpointing of layers with biases and dropout: which results are kept, and which operations run again.

Run `python -m snippets.compiler.training_memory_selective`.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

# --8<-- [start:selective]
aten = torch.ops.aten
KEPT = [  # every other operation runs again in backward
    aten.mm.default,
    aten.addmm.default,  # a linear layer with bias
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
]
contexts = partial(create_selective_checkpoint_contexts, KEPT)


def loss_of(blocks: nn.Module, x: Tensor) -> Tensor:
    """Each block is a checkpoint of its own."""
    for block in blocks:
        x = x + checkpoint(block, x, use_reentrant=False, context_fn=contexts)
    return x.square().mean()


# --8<-- [end:selective]


def main() -> None:
    layers = nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64)
    blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(64), *layers) for _ in range(2))
    loss = torch.compile(loss_of, backend="aot_eager")(blocks, torch.randn(32, 64))
    loss.backward()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()

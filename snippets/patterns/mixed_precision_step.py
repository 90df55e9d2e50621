"""A training step in each precision: a model, autocast, a scaler, and TF32."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


# --8<-- [start:model]
class Block(nn.Module):
    """A pre-norm transformer block. (rows, length, width) in and out."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """Logits (rows, length, vocabulary) of tokens (rows, length)."""

    def __init__(self, layers: int = 2, width: int = 128, heads: int = 2, vocabulary: int = 512):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


# --8<-- [end:model]


# --8<-- [start:step]
def loss_of(model: Model, tokens: Tensor, targets: Tensor, cast: torch.dtype | None = None) -> Tensor:
    """The mean loss. Under autocast products take inputs of dtype `cast`; the loss is computed in fp32 at least."""
    with torch.autocast(tokens.device.type, cast, enabled=cast is not None):
        logits = model(tokens).flatten(0, 1)
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets.flatten())


def train_step(
    model: Model,
    optimizer: torch.optim.Optimizer,
    tokens: Tensor,
    targets: Tensor,
    cast: torch.dtype | None = None,
    scaler: torch.amp.GradScaler | None = None,
    loss_of: Callable[..., Tensor] = loss_of,
) -> Tensor:
    """One update. `scaler` is for autocast to fp16 alone."""
    optimizer.zero_grad()
    loss = loss_of(model, tokens, targets, cast)
    if scaler is None:
        loss.backward()
        optimizer.step()
    else:
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # divides the gradients, and leaves the step out where one is infinite
        scaler.update()
    return loss.detach()


# --8<-- [end:step]


# --8<-- [start:tf32]
def products_of_fp32(tf32: bool) -> None:
    """For the whole process: whether products of fp32 matrices may round their inputs to TF32."""
    torch.set_float32_matmul_precision("high" if tf32 else "highest")


# --8<-- [end:tf32]

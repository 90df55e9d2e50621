"""One training step in bf16: the loss, its gradients from one batch or several, the clipped update."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from snippets.compiler.training_model import Batch

MAX_NORM = 0.1  # so small that the gradients of this model are always clipped


# --8<-- [start:step]
def loss_of(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """The forward, in bf16 where autocast thinks that safe."""
    with torch.autocast(tokens.device.type, torch.bfloat16):
        return model(tokens, targets)


def clip_and_update(parameters: Sequence[Tensor], optimizer: torch.optim.Optimizer) -> None:
    nn.utils.clip_grad_norm_(parameters, MAX_NORM)
    optimizer.step()


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Batch],
    loss_of: Callable[..., Tensor] = loss_of,
    clip_and_update: Callable[..., None] = clip_and_update,
) -> Tensor:
    """One update from one batch, or from several: the gradients of `batches` are accumulated."""
    losses = []
    for tokens, targets in batches:
        loss = loss_of(model, tokens, targets) / len(batches)
        loss.backward()
        losses.append(loss.detach())
    clip_and_update(list(model.parameters()), optimizer)
    optimizer.zero_grad()
    return torch.stack(losses).sum()


# --8<-- [end:step]

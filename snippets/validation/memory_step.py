"""A training step under autocast with AdamW, and an optimizer that updates each parameter in backward."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]  # tokens and targets


# --8<-- [start:step]
def loss_of(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    with torch.autocast(tokens.device.type, torch.bfloat16):
        return model(tokens, targets)


def loss_in_fp32(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    return model(tokens, targets)


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    tokens: Tensor,
    targets: Tensor,
    loss_of: Callable[..., Tensor] = loss_of,
) -> Tensor:
    loss = loss_of(model, tokens, targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


# --8<-- [end:step]


# --8<-- [start:early]
def adam(parameters: Iterable[nn.Parameter], **options: Any) -> torch.optim.Optimizer:
    """AdamW in the middle of a training: with its state."""
    optimizer = torch.optim.AdamW(parameters, **options)
    for p in optimizer.param_groups[0]["params"]:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


class Early:
    """An AdamW for each parameter, which steps as soon as the gradient is whole, and drops the gradient."""

    def __init__(self, model: nn.Module, **options: Any):
        self.of = {p: adam([p], **options) for p in model.parameters()}
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(self.update)

    def update(self, p: Tensor) -> None:
        self.of[p].step()
        p.grad = None

    @property
    def state(self) -> dict:
        return {p: optimizer.state[p] for p, optimizer in self.of.items()}

    def step(self) -> None:
        """All is done."""

    def zero_grad(self) -> None:
        """All is done."""


# --8<-- [end:early]

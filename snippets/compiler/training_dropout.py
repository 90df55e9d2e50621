"""Dropout under a memory budget: its mask in backward is another."""

import torch
import torch._functorch.config
import torch.nn.functional as F
from torch import Tensor


# --8<-- [start:dropout]
def dropped(x: Tensor, weight: Tensor) -> Tensor:
    """x (rows, width), weight (width, width)."""
    scores = F.softmax(x @ weight @ x.mT, dim=-1)
    return (F.dropout(scores, 0.5) @ x).relu().sum()


def with_dropout(budget: float) -> tuple[Tensor, Tensor]:
    """Loss and weight gradient, compiled under a budget, from one seed."""
    torch.manual_seed(0)
    x, weight = torch.randn(64, 32), torch.randn(32, 32, requires_grad=True)
    torch.compiler.reset()
    backend = "aot_eager_decomp_partition"
    with torch._functorch.config.patch(activation_memory_budget=budget):
        loss = torch.compile(dropped, backend=backend)(x, weight)
    return loss.detach(), *torch.autograd.grad(loss, weight)


# --8<-- [end:dropout]

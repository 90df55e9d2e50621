"""What a design keeps for backward."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snippets.validation.memory import saved


# --8<-- [start:kept]
class Gated(nn.Module):
    """silu(a(x)) * b(x), and back to the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b, self.back = (
            nn.Linear(width, 4 * width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.back(F.silu(self.a(x)) * self.b(x))


class Again(nn.Module):
    """A module that is computed again in backward, and keeps its input only."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(self.module, x, use_reentrant=False)


def mlp(width: int, activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), activation, nn.Linear(4 * width, width))


def designs(width: int = 64) -> dict[str, nn.Module]:
    return {
        "GELU": mlp(width, nn.GELU()),
        "ReLU": mlp(width, nn.ReLU()),
        "ReLU in place": mlp(width, nn.ReLU(inplace=True)),
        "gated SiLU": Gated(width),
        "gated SiLU, again in backward": Again(Gated(width)),
    }


def kept(module: nn.Module, tokens: int = 256, width: int = 64) -> float:
    """What a forward keeps for backward, in tensors of the input's size."""
    x = torch.randn(tokens, width, requires_grad=True)
    return sum(each.nbytes for each in saved(module, lambda: module(x))) / x.nbytes


# --8<-- [end:kept]

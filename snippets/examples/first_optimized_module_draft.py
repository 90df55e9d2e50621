"""A module as its author first wrote it: it scores accounts by their last transactions.

Run `python -m snippets.examples.first_optimized_module_draft` to see the shapes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FEATURES, STEPS, TASKS = 32, 64, 8
WIDTH = 256 if DEVICE.type == "cuda" else 64


# --8<-- [start:draft]
class Draft(nn.Module):
    """Scores accounts by their last transactions: (batch, steps, features) in, (batch, tasks) out."""

    def __init__(self, width: int = WIDTH):
        super().__init__()
        self.register_buffer("mean", torch.zeros(FEATURES))
        self.register_buffer("spread", torch.ones(FEATURES))
        self.embed = nn.Linear(FEATURES, width)
        self.scale = nn.Parameter(torch.ones(width))
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.memory = nn.Parameter(torch.linspace(0, 4, width))  # of each channel: how slowly it forgets
        self.heads = nn.ModuleList(nn.Linear(width, 1) for _ in range(TASKS))

    def norm(self, h: Tensor) -> Tensor:
        return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6) * self.scale

    def forward(self, x: Tensor) -> Tensor:
        if x.isnan().any():
            raise ValueError("a transaction has no amount")
        h = self.embed((x - self.mean) / self.spread)
        normed = self.norm(h)
        h = h + self.down(F.silu(self.gate(normed)) * self.up(normed))
        keep = torch.sigmoid(self.memory)
        state = torch.zeros_like(h[:, 0])
        for step in range(x.shape[1]):  # a moving average: the last transaction counts most
            state = keep * state + (1 - keep) * h[:, step]
        return torch.cat([head(state) for head in self.heads], -1)


# --8<-- [end:draft]


# --8<-- [start:make]
def make_draft() -> nn.Module:
    """The module for inference, with its weights."""
    torch.manual_seed(0)
    draft = Draft().to(DEVICE).eval().requires_grad_(False)
    draft.mean.uniform_(-1, 1)
    draft.spread.uniform_(1, 2)
    return draft


def make_input(batch: int) -> Tensor:
    """The transactions of so many accounts."""
    return torch.randn(batch, STEPS, FEATURES, device=DEVICE)


# --8<-- [end:make]


def main() -> None:
    x = make_input(64)
    print(f"{tuple(x.shape)} in, {tuple(make_draft()(x).shape)} out")


if __name__ == "__main__":
    main()

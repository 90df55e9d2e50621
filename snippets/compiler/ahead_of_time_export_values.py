"""Code that asks what a tensor holds, or leaves PyTorch, and code that export takes in its place."""

import torch
from torch import Tensor, nn


# --8<-- [start:branch]
class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x.sin()
        return x.cos()


class Where(nn.Module):
    """Computes both, and picks: for cheap branches."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x.sum() > 0, x.sin(), x.cos())


class Cond(nn.Module):
    """Both are in the graph, and one of them runs."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


# --8<-- [end:branch]
# --8<-- [start:count]
class MeanOfSome(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        kept = x[x > 0]  # how many these are, only the data know
        if kept.numel() > 0:
            return kept.mean()
        return x.new_zeros(())


class MeanOfAll(nn.Module):
    """All elements stay, and a mask says which of them count."""

    def forward(self, x: Tensor) -> Tensor:
        mask = x > 0
        return torch.where(mask, x, 0).sum() / mask.sum().clamp(min=1)


# --8<-- [end:count]
# --8<-- [start:numpy]
class NumPy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(x.numpy().clip(0, 1))


class Torch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(0, 1)


# --8<-- [end:numpy]

"""Rewrites that keep state in tensors: a running mean, a table that grows; and a counter that needs none."""

import torch
from torch import Tensor, nn

from snippets.patterns.compiler_friendly_pair import CALLS, Rewrite, side


# --8<-- [start:state]
class StateBefore(nn.Module):
    """A running mean that follows fast at first."""

    def __init__(self) -> None:
        super().__init__()
        self.forget()

    def forget(self) -> None:
        self.calls, self.mean = 0, None

    def forward(self, x: Tensor) -> Tensor:
        mean, self.calls = x.mean(0), self.calls + 1
        if self.mean is None:
            self.mean = mean
        else:
            self.mean = self.mean + max(0.1, 1 / self.calls) * (mean - self.mean)
        return x - self.mean


class StateAfter(nn.Module):
    """The same in buffers. At the first call the rate is one, so the mean may begin as zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(width))

    def forget(self) -> None:
        self.calls.zero_(), self.mean.zero_()

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.mean += (1 / self.calls).clamp(min=0.1) * (x.mean(0) - self.mean)
        return x - self.mean


# --8<-- [end:state]


# --8<-- [start:counter]
class Counter(nn.Module):
    """A counter that nothing depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x.sin()


# --8<-- [end:counter]


# --8<-- [start:table]
class TableBefore(nn.Module):
    """Angles of positions, computed as far as they were needed so far."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("rates", 10000 ** -torch.linspace(0, 1, width), persistent=False)
        self.forget()

    def forget(self) -> None:
        self.known, self.cosines = 0, None

    def forward(self, x: Tensor) -> Tensor:  # (batch, tokens, width)
        if x.shape[1] > self.known:
            self.known = x.shape[1]
            self.cosines = torch.outer(torch.arange(self.known, device=x.device), self.rates).cos()
        return x * self.cosines[: x.shape[1]]


class TableAfter(nn.Module):
    """The same, computed once for the longest row when the module is made."""

    def __init__(self, width: int, longest: int) -> None:
        super().__init__()
        rates = 10000 ** -torch.linspace(0, 1, width)
        self.register_buffer("cosines", torch.outer(torch.arange(longest), rates).cos(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.cosines[: x.shape[1]]


# --8<-- [end:table]


def of_state(rows: int, width: int, device: str) -> Rewrite:
    before, after = StateBefore(), StateAfter(width).to(device)
    inputs = [(torch.randn(rows, width, device=device),) for _ in range(CALLS)]
    return Rewrite(side(before, inputs), side(after, inputs), forget=lambda: (before.forget(), after.forget()))


def of_table(rows: int, width: int, device: str) -> Rewrite:
    before, after = TableBefore(width).to(device), TableAfter(width, 4 * CALLS).to(device)
    inputs = [(torch.randn(rows, length, width, device=device),) for length in range(8, 8 + 2 * CALLS, 2)]
    return Rewrite(side(before, inputs), side(after, inputs), forget=before.forget)

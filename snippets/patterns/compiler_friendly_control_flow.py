"""Rewrites that keep tensor values out of control flow: a loop until convergence, a loop over time, LayerDrop."""

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn

from snippets.patterns.compiler_friendly_pair import CALLS, Rewrite, side, twins


# --8<-- [start:until]
def until_before(scores: Tensor) -> Tensor:
    """Rows and columns are made to sum to one in turn, until the rows are close."""
    p = scores.exp()
    while (p.sum(-1) - 1).abs().max() > 1e-2:
        p = p / p.sum(-1, keepdim=True)
        p = p / p.sum(-2, keepdim=True)
    return p


def until_after(scores: Tensor, most: int = 16) -> Tensor:
    """The same in a fixed number of steps: what is close enough stays as it is."""
    p = scores.exp()
    for _ in range(most):
        far = (p.sum(-1) - 1).abs().max() > 1e-2
        rows = p / p.sum(-1, keepdim=True)
        p = torch.where(far, rows / rows.sum(-2, keepdim=True), p)
    return p


# --8<-- [end:until]


# --8<-- [start:loop]
class Loop(nn.Module):
    """A recurrence over time; its results are kept in a list."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.into, self.on = nn.Linear(width, width), nn.Linear(width, width, bias=False)

    def step(self, state: Tensor, entering: Tensor) -> Tensor:
        return torch.tanh(entering + self.on(state))

    def forward(self, x: Tensor) -> Tensor:  # (batch, time, width)
        state, states = torch.zeros_like(x[:, 0]), []
        for entering in self.into(x).unbind(1):
            state = self.step(state, entering)
            states.append(state)
        return torch.stack(states, 1)


def loop_after(module: Loop, compile: Callable) -> Callable:
    """The same, of which one step is compiled, and the loop is not."""
    step = compile(module.step)

    def forward(x: Tensor) -> Tensor:
        state, states = torch.zeros_like(x[:, 0]), torch.empty_like(x)
        # contiguous, so that the layout of a step does not depend on the length
        every = module.into(x).transpose(0, 1).contiguous()
        for time, entering in enumerate(every):
            state = states[:, time] = step(state, entering)
        return states

    return forward


# --8<-- [end:loop]


# --8<-- [start:drop]
class DropBefore(nn.Module):
    """Layers, each of which is left out at random: LayerDrop, or stochastic depth."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if random.random() < 0.5:
                continue
            x = x + layer(x).relu()
        return x


class DropAfter(DropBefore):
    """The same; which layers take part is drawn by the caller, and comes as zeros and ones."""

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        for layer, gate in zip(self.layers, kept.unbind(), strict=True):
            x = x + gate * layer(x).relu()
        return x


# --8<-- [end:drop]


def of_until(rows: int, width: int, device: str) -> Rewrite:
    inputs = [(torch.randn(rows, width, width, device=device),) for _ in range(CALLS)]
    return Rewrite(side(until_before, inputs), side(until_after, inputs))


def of_loop(rows: int, width: int, device: str) -> Rewrite:
    module = Loop(width).to(device)
    inputs = [(torch.randn(rows, length, width, device=device),) for length in range(3, 3 + CALLS)]
    return Rewrite(side(module, inputs), lambda compile: (loop_after(module, compile), inputs))


def of_drop(rows: int, width: int, device: str) -> Rewrite:
    before, after = twins(DropBefore(4, width), DropAfter(4, width), device)
    inputs = [(torch.randn(rows, width, device=device),) for _ in range(CALLS)]
    dice = random.Random(0)
    kept = torch.tensor([[float(dice.random() >= 0.5) for _ in range(4)] for _ in inputs], device=device)
    gated = [(*x, gates) for x, gates in zip(inputs, kept.unbind(), strict=True)]
    return Rewrite(side(before, inputs), side(after, gated), forget=lambda: random.seed(0))

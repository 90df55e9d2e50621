"""Faults of the other files as others spell them. They were held out once, and found only after a mend."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.snippets.validation.planted.fusion import Attention, LearnedPositions, Rotary
from tests.snippets.validation.planted.readiness import MLP, PositionsOnHostClean


class SoftmaxInAttention(Attention):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        w = q.matmul(k.transpose(2, 3)) / 4.0  # fault: attention
        w = torch.exp(w - w.max(dim=-1, keepdim=True).values)
        return self.out((w / w.sum(-1, keepdim=True)).matmul(v).transpose(1, 2).reshape(x.shape))


class FullAttention(Attention):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.scaled_dot_product_attention(*self.split(x)).transpose(1, 2).reshape(x.shape))


class Cursor(nn.Module):
    """What changes is written in another line than the one that reads it."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.fc, self.cursor = nn.Linear(width, width), 0
        self.register_buffer("bank", torch.zeros(8, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x) + self.bank[self.cursor]
        self.cursor = (self.cursor + 1) % 8  # fault: recompilation
        return y


class CursorClean(Cursor):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) + self.bank[self.cursor]


class StackedGate(nn.Module):
    def __init__(self, width: int = 64, hidden: int = 128):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * hidden, bias=False), nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.up(x).chunk(2, dim=-1)
        return self.down(gate * torch.sigmoid(gate) * up)  # fault: gated-mlp


class StackedGateClean(StackedGate):
    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class RotaryStacked(Rotary):
    def turn(self, x: Tensor) -> Tensor:
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).reshape(x.shape)  # fault: rotary
        return torch.addcmul(x * self.cos[: x.shape[-2]], turned, self.sin[: x.shape[-2]])


class SumOfExponentials(nn.Module):
    def __init__(self, width: int = 32, vocabulary: int = 8192):
        super().__init__()
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        logits = self.head(hidden)
        chosen = logits.gather(-1, target[..., None])[..., 0]
        return (torch.logsumexp(logits, -1) - chosen).mean()  # fault: cross-entropy


class Sampler(SumOfExponentials):
    """Logits over a vocabulary, and no target."""

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        return self.head(hidden[:, -1]).softmax(-1).amax(-1)


class ListedPlaces(MLP):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, [0, 3, 5, 7]])  # fault: cuda-graph


class TableOnHost(MLP):
    def __init__(self):
        super().__init__()
        self.table = torch.randn(16, 64)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.table[: x.shape[1]].to(x.device))  # fault: cuda-graph


class WritesIntoCopy(MLP):
    """A copy of the input may be written to, and a pair of operations is no chain."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        x[:, 0] = 0
        return super().forward(x) * 0.5 + x


def sequence() -> Tensor:
    return torch.randn(2, 16, 64)


def language() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 8, 32), torch.randint(0, 8192, (2, 8))


CASES = {
    "softmax in attention": (lambda: (SoftmaxInAttention(), sequence()), lambda: (FullAttention(), sequence())),
    "cursor": (lambda: (Cursor(), sequence()), lambda: (CursorClean(), sequence())),
    "stacked gate": (lambda: (StackedGate(), sequence()), lambda: (StackedGateClean(), sequence())),
    "rotary, stacked": (lambda: (RotaryStacked(), sequence()), lambda: (LearnedPositions(), sequence())),
    "log of a sum": (lambda: (SumOfExponentials(), *language()), lambda: (Sampler(), *language())),
    "listed places": (lambda: (ListedPlaces(), sequence()), lambda: (WritesIntoCopy(), sequence())),
    "table on host": (
        lambda: (TableOnHost(), sequence()),
        lambda: (PositionsOnHostClean(), torch.randint(0, 100, (4, 12))),
    ),
}

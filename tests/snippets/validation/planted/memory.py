"""What takes more memory than it has to, or copies what it could read."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.snippets.validation.planted.fusion import Attention


class ContiguousHeads(Attention):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        q = q.contiguous()  # fault: copy
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class ChannelsLastNorm(nn.Module):
    """A ConvNeXt block's norm, over channels that lie apart."""

    def __init__(self, channels: int = 16):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.mix = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x).permute(0, 2, 3, 1).contiguous()  # fault: copy
        return x + self.mix(self.norm(y)).permute(0, 3, 1, 2)


class ChannelsLastNormClean(ChannelsLastNorm):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x).permute(0, 2, 3, 1)
        return x + self.mix(self.norm(y)).permute(0, 3, 1, 2)


class GroupedQueries(nn.Module):
    def __init__(self, width: int = 64, heads: int = 8, groups: int = 2):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.qkv = nn.Linear(width, (heads + 2 * groups) * self.size)
        self.out = nn.Linear(width, width)

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        parts = self.qkv(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
        return parts.split((self.heads, self.groups, self.groups), dim=1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        k, v = (t.repeat_interleave(self.heads // self.groups, dim=1) for t in (k, v))  # fault: copy
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class GroupedQueriesClean(GroupedQueries):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Prototypes(nn.Module):
    def __init__(self, count: int = 128, width: int = 64):
        super().__init__()
        self.centres = nn.Parameter(torch.randn(count, width))

    def forward(self, x: Tensor) -> Tensor:
        apart = x[:, None, :] - self.centres[None]  # fault: temporary
        return -(apart**2).sum(-1)


class PrototypesClean(Prototypes):
    def forward(self, x: Tensor) -> Tensor:
        return -(torch.cdist(x, self.centres) ** 2)


class OneHotEmbedding(nn.Module):
    def __init__(self, vocabulary: int = 1000, width: int = 64):
        super().__init__()
        self.table = nn.Parameter(torch.randn(vocabulary, width))

    def forward(self, ids: Tensor) -> Tensor:
        return F.one_hot(ids, len(self.table)).float() @ self.table  # fault: temporary


class OneHotEmbeddingClean(OneHotEmbedding):
    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.table)


class Rollout(nn.Module):
    def __init__(self, width: int = 64, steps: int = 6):
        super().__init__()
        self.steps, self.transition = steps, nn.Linear(width, width)

    def forward(self, state: Tensor) -> Tensor:
        path = state[:, None]
        for _ in range(self.steps):
            state = torch.tanh(self.transition(state))
            path = torch.cat((path, state[:, None]), dim=1)  # fault: growing
        return path


class RolloutClean(Rollout):
    def forward(self, state: Tensor) -> Tensor:
        path = [state]
        for _ in range(self.steps):
            state = torch.tanh(self.transition(state))
            path.append(state)
        return torch.stack(path, dim=1)


class KeepsHistory(nn.Module):
    def __init__(self, width: int = 64):
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)
        self.history: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.up(x))
        self.history.append(h)  # fault: kept-graph
        return self.down(h)


class KeepsHistoryClean(KeepsHistory):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.up(x))
        self.history = [h.detach()]
        return self.down(h)


def sequence(batch: int = 2) -> Tensor:
    return torch.randn(batch, 16, 64)


CASES = {
    "contiguous heads": (lambda: (ContiguousHeads(), sequence()), lambda: (Attention(), sequence())),
    "channels last": (
        lambda: (ChannelsLastNorm(), torch.randn(2, 16, 8, 8)),
        lambda: (ChannelsLastNormClean(), torch.randn(2, 16, 8, 8)),
    ),
    "grouped queries": (lambda: (GroupedQueries(), sequence()), lambda: (GroupedQueriesClean(), sequence())),
    "pairwise differences": (
        lambda: (Prototypes(), torch.randn(32, 64)),
        lambda: (PrototypesClean(), torch.randn(32, 64)),
    ),
    "one-hot": (
        lambda: (OneHotEmbedding(), torch.randint(0, 1000, (4, 12))),
        lambda: (OneHotEmbeddingClean(), torch.randint(0, 1000, (4, 12))),
    ),
    "growing path": (lambda: (Rollout(), torch.randn(4, 64)), lambda: (RolloutClean(), torch.randn(4, 64))),
    "history": (lambda: (KeepsHistory(), torch.randn(4, 64)), lambda: (KeepsHistoryClean(), torch.randn(4, 64))),
}

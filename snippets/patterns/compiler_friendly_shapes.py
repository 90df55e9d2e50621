"""Rewrites that give tensors fixed shapes: a KV cache, boxes selected by a mask, a mixture of experts."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snippets.patterns.compiler_friendly_pair import CALLS, Rewrite, side, twins


# --8<-- [start:cache]
class CacheBefore(nn.Module):
    """Attention to all tokens so far, which are kept in tensors that grow."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.forget()

    def forget(self) -> None:
        self.seen, self.keys, self.values = 0, None, None

    def forward(self, x: Tensor) -> Tensor:  # one token of each row: (batch, 1, width)
        keys, values = self.kv(x).chunk(2, -1)
        if self.seen:
            keys, values = torch.cat((self.keys, keys), 1), torch.cat((self.values, values), 1)
        self.keys, self.values, self.seen = keys, values, self.seen + 1
        return F.scaled_dot_product_attention(self.q(x), keys, values)


class CacheAfter(nn.Module):
    """The same with room for the longest row; the place of the token is a tensor."""

    def __init__(self, batch: int, longest: int, width: int) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.register_buffer("keys", torch.zeros(batch, longest, width), persistent=False)
        self.register_buffer("values", torch.zeros(batch, longest, width), persistent=False)

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        keys, values = self.kv(x).chunk(2, -1)
        self.keys.index_copy_(1, place, keys)
        self.values.index_copy_(1, place, values)
        seen = torch.arange(self.keys.shape[1], device=x.device) <= place
        return F.scaled_dot_product_attention(self.q(x), self.keys, self.values, attn_mask=seen[None])


# --8<-- [end:cache]


# --8<-- [start:uncounted]
class CacheUncounted(CacheBefore):
    """The cache that grows, without the integer."""

    def forward(self, x: Tensor) -> Tensor:
        keys, values = self.kv(x).chunk(2, -1)
        if self.keys is not None:
            keys, values = torch.cat((self.keys, keys), 1), torch.cat((self.values, values), 1)
        self.keys, self.values = keys, values
        return F.scaled_dot_product_attention(self.q(x), keys, values)


# --8<-- [end:uncounted]


# --8<-- [start:select]
def select_before(boxes: Tensor, scores: Tensor) -> Tensor:
    """The boxes whose score is above a half, best first: as many as there are."""
    kept = scores > 0.5
    return boxes[kept][scores[kept].argsort(descending=True)]


def select_after(boxes: Tensor, scores: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The `most` best boxes, and which of them are above a half."""
    best, index = scores.topk(most)
    return boxes[index], best > 0.5


# --8<-- [end:select]


# --8<-- [start:experts]
class ExpertsBefore(nn.Module):
    """Each token goes to one expert: the experts take their tokens in turn."""

    def __init__(self, experts: int, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.weight = nn.Parameter(torch.randn(experts, width, width) * width**-0.5)

    def forward(self, x: Tensor) -> Tensor:  # (tokens, width)
        chosen, output = self.router(x).argmax(-1), torch.zeros_like(x)
        for expert, weight in enumerate(self.weight):
            mine = chosen == expert
            output[mine] = x[mine] @ weight
        return output


class ExpertsAfter(ExpertsBefore):
    """The tokens in the order of their experts: one product of groups, whose ends are a tensor."""

    def forward(self, x: Tensor) -> Tensor:
        chosen, order = self.router(x).argmax(-1).sort(stable=True)
        ends = torch.searchsorted(chosen, torch.arange(len(self.weight), device=x.device), right=True)
        grouped = F.grouped_mm(x[order], self.weight, offs=ends.int())
        return torch.empty_like(x).index_copy(0, order, grouped)


# --8<-- [end:experts]


def of_cache(rows: int, width: int, device: str) -> Rewrite:
    before, after = twins(CacheBefore(width), CacheAfter(rows, CALLS, width), device)
    tokens = torch.randn(CALLS, rows, 1, width, device=device).unbind()
    places = torch.arange(CALLS, device=device).split(1)
    inputs = list(zip(tokens, places, strict=True))
    return Rewrite(side(before, [(x,) for x in tokens]), side(after, inputs), forget=before.forget)


def of_select(rows: int, width: int, device: str) -> Rewrite:
    inputs = [(torch.randn(4 * rows, 4, device=device), torch.rand(4 * rows, device=device)) for _ in range(CALLS)]
    most = [(*each, 3 * rows) for each in inputs]
    return Rewrite(side(select_before, inputs), side(select_after, most), lambda output: output[0][output[1]])


def of_experts(rows: int, width: int, device: str) -> Rewrite:
    before, after = twins(ExpertsBefore(4, width).bfloat16(), ExpertsAfter(4, width).bfloat16(), device)
    inputs = [(torch.randn(4 * rows, width, device=device).bfloat16(),) for _ in range(CALLS)]
    return Rewrite(side(before, inputs), side(after, inputs))

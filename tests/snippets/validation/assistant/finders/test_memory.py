"""Memory: what is no fault of the author's."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from snippets.validation.assistant.found import find
from tests.snippets.validation.planted import fusion
from tests.snippets.validation.planted.seen import evidence, faults

pytestmark = pytest.mark.usefixtures("one_core")


class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.utils.parametrizations.spectral_norm(nn.Linear(64, 64))

    def forward(self, x):
        return self.fc(x)


def test_copies_that_pytorch_makes_itself_are_not_the_authors():
    assert not faults(find(*evidence(lambda: (Spectral(), fusion.sequence()))))


class Decoder(nn.Module):
    """One step of attention with a cache that it is given, or, without, of prefixes of its own."""

    def __init__(self, prefix=False, fused=True):
        super().__init__()
        self.qkv, self.fused = nn.Linear(32, 96), fused
        self.prefix = nn.Parameter(torch.randn(1, 4, 16, 8)) if prefix else None

    def forward(self, x, keys, values):
        q, k, v = (one.view(1, 1, 4, 8).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        if self.prefix is not None:
            return F.scaled_dot_product_attention(q, torch.cat([self.prefix, k], 2), torch.cat([self.prefix, v], 2))
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        if self.fused:
            return F.scaled_dot_product_attention(q, keys, values), keys, values
        return (q @ keys.transpose(-2, -1)).softmax(-1) @ values, keys, values


class Static(Decoder):
    def forward(self, x, keys, values, at):
        q, k, v = (one.view(1, 1, 4, 8).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        keys, values = keys.index_copy(2, at, k), values.index_copy(2, at, v)
        seen = (torch.arange(16) <= at)[None]
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen), keys, values


@pytest.mark.parametrize("fused", [True, False])
def test_a_cache_that_grows_is_found(fused):
    made = lambda: (Decoder(fused=fused), torch.randn(1, 1, 32), *(torch.randn(1, 4, 15, 8) for _ in range(2)))  # noqa: E731
    (found,) = [one for one in faults(find(*evidence(made))) if one.kind == "growing"]
    assert found.times == 2 and "static cache" in found.change


def test_a_static_cache_and_a_learned_prefix_are_no_caches_that_grow():
    cache = [torch.randn(1, 4, 16, 8) for _ in range(2)]
    assert not faults(find(*evidence(lambda: (Decoder(prefix=True), torch.randn(1, 1, 32), *cache))))
    assert not faults(find(*evidence(lambda: (Static(), torch.randn(1, 1, 32), *cache, torch.tensor([3])))))


class Beams(nn.Module):
    """Beams with a memory of all that came before, whose rows are put into order after each step."""

    def __init__(self, order, kept=None):
        super().__init__()
        self.order = order
        self.register_buffer("kept", kept)
        self.register_buffer("rows", torch.tensor([0, 0, 1, 2]))

    def forward(self, x):
        past = x[:, None]
        for _ in range(12):
            past = self.order(torch.cat([past, x[:, None]], 1), self.rows)
            if self.kept is not None:
                past = past.index_select(1, self.kept)
            x = x + past.softmax(1).mean(1)
        return x


ORDERS = {
    "an index": lambda past, rows: past[rows],
    "index_select": lambda past, rows: past.index_select(0, rows),
    "gather": lambda past, rows: past.gather(0, rows[:, None, None].expand_as(past)),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_tensor_that_grows_and_is_put_into_order_is_found(order):
    found = find(*evidence(lambda: (Beams(order), torch.randn(4, 32)), sizes=False))
    (grows,) = [one for one in faults(found) if one.kind == "growing"]
    assert "index_select" in grows.change


def test_what_keeps_its_size_does_not_grow():
    made = lambda: (Beams(ORDERS["an index"], torch.tensor([1])), torch.randn(4, 32))  # noqa: E731
    assert not [one for one in find(*evidence(made, sizes=False)) if one.kind == "growing"]

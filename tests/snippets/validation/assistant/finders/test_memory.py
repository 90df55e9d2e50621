"""Memory: what is no fault of the author's."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from snippets.validation.assistant.found import find
from tests.snippets.validation.planted import fusion, memory
from tests.snippets.validation.planted.seen import evidence, faults, recorded

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
    found = find(*recorded(lambda: (Beams(order), torch.randn(4, 32))))
    (grows,) = [one for one in faults(found) if one.kind == "growing"]
    assert "index_select" in grows.change


def test_what_keeps_its_size_does_not_grow():
    made = lambda: (Beams(ORDERS["an index"], torch.tensor([1])), torch.randn(4, 32))  # noqa: E731
    assert not [one for one in find(*recorded(made)) if one.kind == "growing"]


class Pairs(nn.Module):
    """A function of two sets of rows."""

    def __init__(self, function):
        super().__init__()
        self.function, self.f = function, nn.Linear(16, 32)

    def forward(self, a, b):
        return self.function(self.f(a), self.f(b))


def copied_both(a, b):
    return a.repeat_interleave(len(b), 0), b.repeat(len(a), 1)


def by_loss(a, b):
    return F.mse_loss(*copied_both(a, b), reduction="none").sum(1).view(len(a), len(b))


def by_distance(a, b):
    return F.pairwise_distance(*copied_both(a, b)).view(len(a), len(b))


def by_difference(a, b):
    one, other = copied_both(a, b)
    return (one - other).square().sum(1)


def by_expansion(a, b):
    one, other = a[:, None].expand(-1, len(b), -1), b[None].expand(len(a), -1, -1)
    return F.l1_loss(one, other, reduction="none").sum(-1)


def by_similarity(a, b):
    return F.cosine_similarity(*copied_both(a, b))


@pytest.mark.parametrize("function", [by_loss, by_distance, by_difference, by_expansion, by_similarity])
def test_all_pairs_made_by_copies_are_found_with_what_copies(function):
    (found,) = faults(find(*recorded(lambda: (Pairs(function), torch.randn(64, 16), torch.randn(48, 16)))))
    assert found.kind == "temporary" and ("p=1" in found.change) is (function is by_expansion)
    assert ("cdist" if function is not by_similarity else "F.normalize") in found.change
    if function is by_difference:
        assert any("one, other" in line.text or "return a.repeat" in line.text for line in found.lines)


def of_rows(a, b):
    return F.mse_loss(a, b, reduction="none").sum(1)


def of_copies_and_data(a, b):
    return (a.repeat(2, 1) - torch.cat([b, a])).square().sum(1)


def to_one_number(a, b):
    return F.mse_loss(a, b.repeat(4, 1))


@pytest.mark.parametrize("function", [of_rows, of_copies_and_data, to_one_number])
def test_rows_that_are_compared_one_by_one_are_left_alone(function):
    inputs = torch.randn(64, 16), torch.randn(16 if function is to_one_number else 64, 16)
    found = faults(find(*recorded(lambda: (Pairs(function), *inputs))))
    assert not [one for one in found if one.kind == "temporary"]


@pytest.mark.parametrize(("dtype", "said"), [(torch.float32, True), (torch.bfloat16, False)])
def test_shared_heads_by_a_flag_are_advised_with_the_dtype_that_kernels_take(dtype, said):
    found = find(*recorded(lambda: (memory.GroupedQueries().to(dtype), memory.sequence().to(dtype))))
    changes = [one.change for one in faults(found) if "enable_gqa" in one.change]
    assert changes and all(("bf16 or fp16" in change) is said for change in changes)


class Windows(nn.Module):
    """Attention in windows of several pictures, with a mask for each window of a picture."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.register_buffer("mask", torch.zeros(16, 32, 32).index_fill(2, torch.arange(9), -100.0))

    def forward(self, x):
        return self.function(self, x)


def attended(m, x):
    return F.scaled_dot_product_attention(x, x, x, attn_mask=m.mask.repeat(16, 1, 1)[:, None])


def made_and_added(m, x):
    mask = torch.ones(16, 32, 32, device=x.device).triu(1) * -100.0
    return (x @ x.mT + mask.tile(16, 1, 1)[:, None]).softmax(-1) @ x


def of_neighbours(m, x):
    return (x @ x.mT + m.mask.repeat_interleave(16, 0)[:, None]).softmax(-1) @ x


def written(m, x):
    m.mask.add_(1)
    return (x @ x.mT + m.mask.repeat(16, 1, 1)[:, None]).softmax(-1) @ x


def viewed(m, x):
    scores = (x @ x.mT).view(16, 16, 1, 32, 32) + m.mask[:, None]
    return scores.flatten(0, 1).softmax(-1) @ x


def of_data(m, x):
    mask = x[:16, 0, :, :1] + m.mask
    return (x @ x.mT + mask.repeat(16, 1, 1)[:, None]).softmax(-1) @ x


def small(m, x):
    return F.scaled_dot_product_attention(x[:32], x[:32], x[:32], attn_mask=m.mask.repeat(2, 1, 1)[:, None])


MASKS = {
    attended: "in a buffer", made_and_added: "before that of the rows", of_neighbours: "behind that of the rows",
    written: "", viewed: "", of_data: "", small: "",
}  # fmt: skip


@pytest.mark.parametrize("function", MASKS, ids=lambda one: one.__name__)
def test_a_mask_that_is_copied_for_each_example_is_found(function):
    found = faults(find(*recorded(lambda: (Windows(function), torch.randn(256, 1, 32, 8)))))
    changes = [one.change for one in found if one.title == "A mask is copied for each example"]
    assert len(changes) == bool(MASKS[function]) and all(MASKS[function] in change for change in changes)

"""Decoding: sequences that are run again for each position are found, where a cache could hold what is repeated."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from snippets.validation.assistant.found import find
from tests.snippets.validation.planted.seen import faults, recorded

pytestmark = pytest.mark.usefixtures("one_core")
WIDTH, HEADS, STEPS, START = 32, 2, 6, 10


class Layer(nn.Module):
    def __init__(self, mix):
        super().__init__()
        self.mix, self.norm = mix, nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.register_buffer("hidden", ~torch.ones(64, 64).tril().bool())

    def forward(self, x):
        return x + self.mix(self, self.norm(x))


def split(m, x):
    return m.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)


def back(m, y):
    return m.out(y.transpose(1, 2).flatten(2))


def fused(m, x):
    return back(m, F.scaled_dot_product_attention(*split(m, x), is_causal=True))


def by_hand(m, x):
    q, k, v = split(m, x)
    n = x.shape[1]
    scores = (q @ k.mT / 4).masked_fill(m.hidden[:n, :n], -torch.inf)
    return back(m, scores.softmax(-1) @ v)


def by_where(m, x):
    q, k, v = split(m, x)
    seen = torch.ones(x.shape[1], x.shape[1]).tril() > 0
    return back(m, torch.where(seen, q @ k.mT / 4, -1e9).softmax(-1) @ v)


def by_a_bias(m, x):
    q, k, v = split(m, x)
    bias = torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1)
    return back(m, (q @ k.mT / 4 + bias).softmax(-1) @ v)


def of_pytorch(m, x):
    mask = m.hidden[: x.shape[1], : x.shape[1]]
    return m.attention(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0]


def both_ways(m, x):
    return back(m, F.scaled_dot_product_attention(*split(m, x)))


class Numbers(nn.Module):
    """Continues a sequence of numbers."""

    def __init__(self, mix=fused, last=lambda h: h[:, -1:]):
        super().__init__()
        self.last = last
        self.embed, self.head = nn.Linear(1, WIDTH), nn.Linear(WIDTH, 1)
        self.layers = nn.ModuleList(Layer(mix) for _ in range(2))

    def run(self, x):
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
        return h

    def forward(self, x):
        for _ in range(STEPS):
            x = torch.cat([x, self.head(self.last(self.run(x)))], dim=1)
        return x


class Words(Numbers):
    """Continues a sequence of tokens, and picks from the logits of all positions."""

    def __init__(self, mix=fused):
        super().__init__(mix)
        self.table, self.head = nn.Embedding(50, WIDTH), nn.Linear(WIDTH, 50)

    def forward(self, tokens):
        with torch.no_grad():
            for _ in range(STEPS):
                h = self.table(tokens)
                for layer in self.layers:
                    h = layer(h)
                tokens = torch.cat([tokens, self.head(h)[:, -1].argmax(-1, keepdim=True)], dim=-1)
        return tokens


class Translates(Numbers):
    """Attends to another sequence, too."""

    def __init__(self):
        super().__init__()
        self.memory = nn.Parameter(torch.randn(2, 24, WIDTH))

    def run(self, x):
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
            q, _, _ = split(layer, h)
            _, k, v = split(layer, self.memory)
            h = h + back(layer, F.scaled_dot_product_attention(q, k, v))
        return h


class Encoded(Numbers):
    """PyTorch's stack of layers, with the mask that it makes."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, batch_first=True, norm_first=True)
        self.stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def run(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.stack(self.embed(x), mask=mask, is_causal=True)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(1, WIDTH, batch_first=True), nn.Linear(WIDTH, 1)

    def forward(self, x):
        for _ in range(STEPS):
            x = torch.cat([x, self.head(self.rnn(x)[0].narrow(1, x.shape[1] - 1, 1))], dim=1)
        return x


def sequence():
    return torch.randn(2, START, 1)


def tokens():
    return torch.randint(0, 50, (2, START))


WITHOUT_CACHE = {
    "fused": lambda: (Numbers(), sequence()),
    "the last row": lambda: (Numbers(last=lambda h: h[:, -1].unsqueeze(1)), sequence()),
    "narrow": lambda: (Numbers(last=lambda h: h.narrow(1, h.shape[1] - 1, 1)), sequence()),
    "a mask in a buffer": lambda: (Numbers(by_hand), sequence()),
    "a mask that is made": lambda: (Numbers(by_where), sequence()),
    "a bias": lambda: (Numbers(by_a_bias), sequence()),
    "PyTorch's layer": lambda: (Numbers(of_pytorch), sequence()),
    "tokens": lambda: (Words(), tokens()),
    "attention to another sequence": lambda: (Translates(), sequence()),
    "PyTorch's stack": lambda: (Encoded(), sequence()),
    "PyTorch's stack, evaluated": lambda: (Encoded().eval(), sequence()),
    "a recurrent layer": lambda: (Recurrent(), sequence()),
}


@functools.cache
def found_in(name):
    return find(*recorded(WITHOUT_CACHE[name]))


@pytest.mark.parametrize("name", WITHOUT_CACHE)
def test_a_sequence_that_is_run_again_at_each_step_is_found(name):
    (one,) = [each for each in faults(found_in(name)) if each.kind in ("decoding", "growing", "small-kernels")]
    total = sum(range(START, START + STEPS))
    assert one.title == "Each step runs the whole sequence again"
    assert f"{STEPS} turns run {total} positions, {START + STEPS - 1} of them different: 5 times" in one.evidence
    assert ("layer's state" if name == "a recurrent layer" else "keys and values") in one.change


def test_a_cache_is_static_where_nothing_is_trained():
    changes = [one.change for name in ("fused", "tokens") for one in found_in(name) if one.kind == "decoding"]
    assert ["static cache" in one for one in changes] == [False, True]


def test_the_line_that_runs_the_layers_comes_first():
    (one,) = [each for each in found_in("fused") if each.kind == "decoding"]
    assert one.line.text == "x = torch.cat([x, self.head(self.last(self.run(x)))], dim=1)"


class Cached(Numbers):
    """One position a step, with keys and values of a fixed size."""

    def forward(self, x):
        keys = values = torch.zeros(2, HEADS, 32, WIDTH // HEADS)
        layer, made = self.layers[0], []
        for step in range(STEPS):
            q, k, v = split(layer, self.embed(x[:, -1:]))
            at = torch.tensor([step])
            keys, values = keys.index_copy(2, at, k), values.index_copy(2, at, v)
            seen = (torch.arange(32) <= at)[None]
            x = self.head(back(layer, F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)))
            made.append(x)
        return torch.cat(made, 1)


class Window(Numbers):
    def forward(self, x):
        for _ in range(STEPS):
            x = torch.cat([x, self.head(self.run(x[:, -4:]))[:, -1:]], dim=1)
        return x


class Averaged(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.head = nn.Linear(1, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x):
        for _ in range(STEPS):
            x = torch.cat([x, self.head(self.up(x).mean(1, keepdim=True))], dim=1)
        return x


OTHERS = {
    "a static cache": lambda: (Cached(), sequence()),
    "both ways": lambda: (Numbers(both_ways), sequence()),
    "all positions are read": lambda: (Numbers(last=lambda h: h.mean(1, keepdim=True)), sequence()),
    "all positions, and the last": lambda: (Numbers(last=lambda h: h[:, -1:] - h.mean(1, keepdim=True)), sequence()),
    "a window": lambda: (Window(), sequence()),
    "no layer looks back": lambda: (Averaged(), sequence()),
}


@pytest.mark.parametrize("made", OTHERS.values(), ids=OTHERS)
def test_what_no_cache_holds_is_left_alone(made):
    assert not [one for one in find(*recorded(made)) if one.kind == "decoding"]

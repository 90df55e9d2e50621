"""Advice follows the pattern of the code, and where no advice is safe, there is none."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from snippets.validation.assistant.found import find
from tests.snippets.validation.planted.seen import evidence, faults

pytestmark = pytest.mark.usefixtures("one_core")


class Of(nn.Module):
    """A function as a module, with weights to use."""

    def __init__(self, function):
        super().__init__()
        self.function, self.f = function, nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.q, self.kv = (nn.ModuleList(nn.Linear(8, n) for _ in range(8)) for n in (8, 16))

    def forward(self, *inputs):
        return self.function(self, *inputs)


def independent(m, x):
    return torch.stack([m.f(x[t]) for t in range(x.shape[0])])


def dependent(m, x):
    h = x[0]
    for t in range(x.shape[0]):
        h = m.f(h + x[t])
    return h


def positions(m, x):
    region = torch.zeros(24, 24)
    for i in range(3):
        for j in range(3):
            region[i * 8 : i * 8 + 8, j * 8 : j * 8 + 8] = 3 * i + j
    return x + region.sum()


def layers(m, x):
    state = x.cos()
    for q, kv in zip(m.q, m.kv, strict=True):
        k, v = kv(state).chunk(2, -1)
        x = x + F.scaled_dot_product_attention(q(x), k, v)
    return x


def biased(m, x, bias):
    return ((x @ x.transpose(-2, -1)) / 8 + bias).softmax(-1) @ x


def default_scale(m, x):
    return ((x @ x.transpose(-2, -1)) * 8**-0.5).softmax(-1) @ x


def standard(m, x):
    return (x - x.mean()) / (x.std() + 1e-8)


def repeated_mask(m, x, mask):
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask.repeat(1, 4, 1, 1))


def distances(m, x):
    return (x[:, None] - x[None]).pow(2).sum(-1)


RIGHT = {  # the function, shapes of its inputs, the kinds expected, and words of the change
    "independent turns": (independent, [(16, 4, 8)], {"small-kernels"}, "one batched call"),
    "dependent turns": (dependent, [(16, 4, 8)], {"small-kernels"}, "compile the step"),
    "from sizes only": (positions, [(2, 8)], {"small-kernels"}, "make it once"),
    "layers": (layers, [(2, 8, 8)], set(), ""),
    "bias and scale": (biased, [(2, 4, 16, 8), (1, 4, 16, 16)], {"attention"}, "attn_mask=what is added, scale=0.125"),
    "default scale": (default_scale, [(2, 4, 16, 8)], {"attention"}, "attention(q, k, v):"),
    "a whole tensor": (standard, [(64, 8)], set(), ""),
    "repeated mask": (repeated_mask, [(2, 4, 16, 8), (2, 1, 16, 16)], {"copy"}, "broadcasting"),
    "distances": (distances, [(64, 16)], {"temporary"}, "donot_use_mm_for_euclid_dist"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_the_change_fits_the_pattern(name):
    function, shapes, kinds, words = RIGHT[name]
    found = faults(find(*evidence(lambda: (Of(function), *map(torch.randn, shapes)), sizes=False)))
    found = [one for one in found if one.kind != "cuda-graph"]
    assert {one.kind for one in found} == kinds and len(found) == len(kinds)
    assert all(words in one.change for one in found)

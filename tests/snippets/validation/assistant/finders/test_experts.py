"""Mixtures of experts: loops over experts in any spelling are found, once, and other loops are not."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from snippets.validation.assistant.found import find
from tests.snippets.validation.planted.seen import evidence, faults, recorded

pytestmark = pytest.mark.usefixtures("one_core")


class Mixture(nn.Module):
    """Four experts, two for each token, in one of several spellings."""

    def __init__(self, spelling):
        super().__init__()
        self.spelling = spelling
        self.gate = nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(4))

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        return self.spelling(self, x, weights, chosen)


def by_mask(m, x, weights, chosen):
    out = torch.zeros_like(x)
    for number, expert in enumerate(m.experts):
        mask = (chosen == number).any(-1)
        share = (weights * (chosen == number)).sum(-1, keepdim=True)
        out[mask] = out[mask] + share[mask] * expert(x[mask])
    return out


def by_where(m, x, weights, chosen):
    out = torch.zeros_like(x)
    for number, expert in enumerate(m.experts):
        token, place = torch.where(chosen == number)
        out.index_add_(0, token, expert(x[token]) * weights[token, place, None])
    return out


def by_one_hot(m, x, weights, chosen):
    out, hot = torch.zeros_like(x), F.one_hot(chosen, 4).permute(2, 1, 0)
    for number, expert in enumerate(m.experts):
        place, token = torch.where(hot[number])
        out.index_add_(0, token, expert(x[None, token].reshape(-1, 16)) * weights[token, place, None])
    return out


def by_nonzero(m, x, weights, chosen):
    out = torch.zeros_like(x)
    for number, expert in enumerate(m.experts):
        token = (chosen[:, 0] == number).nonzero().squeeze(-1)
        if token.numel():
            out = out.index_add(0, token, expert(x.index_select(0, token)))
    return out


def dense(m, x, weights, chosen):
    out = 0
    for number, expert in enumerate(m.experts):
        share = (weights * (chosen == number)).sum(-1, keepdim=True)
        out = out + expert(x) * share
    return out


@pytest.mark.parametrize("spelling", [by_mask, by_where, by_one_hot, by_nonzero, dense], ids=lambda one: one.__name__)
def test_a_loop_over_experts_is_one_finding(spelling):
    found = faults(find(*evidence(lambda: (Mixture(spelling), torch.randn(64, 16)), sizes=False)))
    assert [one.kind for one in found] == ["experts"]
    assert "4 experts" in found[0].evidence and ("grouped_mm" in found[0].change or "bmm" in found[0].change)
    assert "expert(x" in found[0].line.text


class Expert(nn.Module):
    """An expert whose layers stand in a forward of its own."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(32, 16)

    def forward(self, x):
        gate, up = self.up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class OfModules(Mixture):
    def __init__(self, spelling):
        super().__init__(spelling)
        self.experts = nn.ModuleList(Expert() for _ in range(4))


@pytest.mark.parametrize("spelling", [by_mask, by_where, by_one_hot, by_nonzero, dense], ids=lambda one: one.__name__)
def test_experts_may_be_modules_of_their_own(spelling):
    found = faults(find(*evidence(lambda: (OfModules(spelling), torch.randn(64, 16)), sizes=False)))
    assert [one.kind for one in found] == ["experts"]
    assert "4 experts" in found[0].evidence and "expert(x" in found[0].line.text


def batched(m, x, weights, chosen):
    first, second = (torch.stack([one[at].weight for one in m.experts]) for at in (0, 2))
    every = F.gelu(x @ first.mT) @ second.mT
    return (every[chosen.T, torch.arange(len(x))] * weights.T[..., None]).sum(0)


def heads(m, x, weights, chosen):
    return torch.cat([expert(x) for expert in m.experts], -1)


def layers(m, x, weights, chosen):
    for expert in m.experts:
        x = x + expert(x)
    return x


def subset(m, x, weights, chosen):
    rows = x[torch.arange(0, 64, 2)]
    return torch.stack([expert(rows) for expert in m.experts])


def soft(m, x, weights, chosen):
    shares = m.gate(x).softmax(-1)
    return sum(expert(x) * shares[:, number, None] for number, expert in enumerate(m.experts))


def by_another_choice(m, x, weights, chosen):
    return sum(expert(x) * (chosen == chosen.flip(-1)).sum(-1, keepdim=True) for expert in m.experts)


def two(m, x, weights, chosen):
    shares = [(weights * (chosen == number)).sum(-1, keepdim=True) for number in range(2)]
    return sum(expert(x) * share for expert, share in zip(m.experts, shares, strict=False))


OTHERS = [batched, heads, layers, subset, soft, by_another_choice, two]


@pytest.mark.parametrize("spelling", OTHERS, ids=lambda one: one.__name__)
def test_no_other_loop_is_one_over_experts(spelling):
    found = faults(find(*recorded(lambda: (Mixture(spelling), torch.randn(64, 16)))))
    assert not {one.kind for one in found} & {"experts", "small-kernels", "sync"}


@pytest.mark.parametrize("spelling", OTHERS, ids=lambda one: one.__name__)
def test_no_other_loop_over_modules_is_one_over_experts(spelling):
    if spelling is not batched:  # it reads the layers of the experts
        found = faults(find(*recorded(lambda: (OfModules(spelling), torch.randn(64, 16)))))
        assert not {one.kind for one in found} & {"experts", "sync"}

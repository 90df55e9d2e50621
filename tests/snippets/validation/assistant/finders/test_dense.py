"""Mixtures of experts that compute every token with every expert, in any spelling, and those where all of it counts."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from snippets.validation.assistant.found import find
from tests.snippets.validation.planted.seen import faults, recorded

pytestmark = pytest.mark.usefixtures("one_core")
EXPERTS, WIDTH = 8, 16


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 64, bias=False), nn.Linear(32, WIDTH, bias=False)

    def forward(self, x):
        gate, up = self.up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Mixture(nn.Module):
    """Eight experts, of which some or all count, in one of several spellings."""

    def __init__(self, spelling, kept=2):
        super().__init__()
        self.spelling, self.kept = spelling, kept
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))
        self.first = nn.Parameter(torch.randn(EXPERTS, WIDTH, 32))
        self.second = nn.Parameter(torch.randn(EXPERTS, 32, WIDTH))
        self.register_buffer("numbers", torch.arange(EXPERTS))

    def forward(self, x):
        return self.spelling(self, x, self.router(x).softmax(-1))


def every(m, x):
    return torch.stack([expert(x) for expert in m.experts], dim=1)


def by_scatter(m, x, probs):
    weights, chosen = probs.topk(m.kept, dim=-1)
    gate = torch.zeros_like(probs).scatter(1, chosen, weights / weights.sum(-1, keepdim=True))
    return (every(m, x) * gate.unsqueeze(-1)).sum(1)


def by_columns(m, x, probs):
    weights, chosen = probs.topk(m.kept, dim=-1)
    gate, out = torch.zeros_like(probs).scatter(1, chosen, weights), torch.zeros_like(x)
    for i, expert in enumerate(m.experts):
        out += gate[:, i : i + 1] * expert(x)
    return out


def by_one_hot(m, x, probs):
    weights, chosen = probs.topk(m.kept)
    gate = (F.one_hot(chosen, EXPERTS) * weights[..., None]).sum(1)
    return torch.einsum("te,ted->td", gate, every(m, x))


def by_threshold(m, x, probs):
    least = probs.topk(m.kept).values[:, -1:]
    gate = torch.where(probs >= least, probs, 0.0)
    return torch.bmm(gate[:, None], every(m, x))[:, 0]


def by_numbers(m, x, probs):
    gate = (probs.argmax(-1, keepdim=True) == m.numbers).to(x.dtype)
    return sum(gate[:, i, None] * expert(x) for i, expert in enumerate(m.experts))


def by_minus_infinity(m, x, probs):
    scores, chosen = m.router(x).topk(m.kept)
    gate = torch.full_like(probs, -torch.inf).scatter(-1, chosen, scores).softmax(-1)
    return (every(m, x) * gate[..., None]).sum(1)


def by_an_index(m, x, probs):
    chosen = probs.argmax(-1)
    return every(m, x)[torch.arange(len(x)), chosen]


def by_gather(m, x, probs):
    weights, chosen = probs.sort(-1, descending=True)
    weights, chosen = weights[:, :2], chosen[:, :2]
    return (every(m, x).gather(1, chosen[..., None].expand(-1, -1, WIDTH)) * weights[..., None]).sum(1)


def with_norms(m, x, probs):
    gate = torch.zeros_like(probs).scatter(1, probs.argmax(-1, keepdim=True), 1.0)
    results = [expert(F.layer_norm(x, (WIDTH,))) for expert in m.experts]
    return (torch.stack(results) * gate.T[..., None]).sum(0)


def by_one_product(m, x, probs):
    weights, chosen = probs.topk(m.kept)
    gate = torch.zeros_like(probs).scatter(1, chosen, weights)
    hidden = F.gelu(torch.einsum("td,edh->teh", x, m.first))
    return torch.einsum("te,teh,ehd->td", gate, hidden, m.second)


DENSE = [
    by_scatter, by_columns, by_one_hot, by_threshold, by_numbers, by_minus_infinity, by_an_index, by_gather,
    by_one_product, with_norms,
]  # fmt: skip


@pytest.mark.parametrize("spelling", DENSE, ids=lambda one: one.__name__)
def test_experts_that_compute_what_is_thrown_away_are_one_finding(spelling):
    found = faults(find(*recorded(lambda: (Mixture(spelling), torch.randn(64, WIDTH)))))
    (one,) = [each for each in found if each.kind in ("experts", "small-kernels")]
    kept = 1 if spelling in (by_numbers, by_an_index, with_norms) else 2
    assert one.title == "Every expert computes every token" and "grouped_mm" in one.change and "index_add" in one.change
    assert f"8 experts compute all rows, and the choice keeps {kept} of 8: {8 // kept} times" in one.evidence


def test_the_line_that_calls_the_experts_comes_first():
    (one,) = [
        each
        for each in faults(find(*recorded(lambda: (Mixture(by_columns), torch.randn(64, WIDTH)))))
        if each.kind == "experts"
    ]
    assert one.line.text == "out += gate[:, i : i + 1] * expert(x)"


def soft(m, x, probs):
    return (every(m, x) * probs[..., None]).sum(1)


def most(m, x, probs):
    weights, chosen = probs.topk(6)
    return (every(m, x) * torch.zeros_like(probs).scatter(1, chosen, weights)[..., None]).sum(1)


def routed(m, x, probs):
    weights, chosen = probs.topk(1)
    order = chosen[:, 0].argsort(stable=True)
    rows = x[order].view(EXPERTS, -1, WIDTH)  # as many for each
    results = torch.bmm(F.gelu(torch.bmm(rows, m.first)), m.second).flatten(0, 1)
    return torch.zeros_like(x).index_add(0, order, results * weights[order])


def with_a_capacity(m, x, probs):
    weights, chosen = probs.t().topk(8)
    send = torch.zeros(EXPERTS, 8, len(x)).scatter(2, chosen[..., None], 1.0)
    hidden = F.gelu(torch.einsum("ect,td,edh->ech", send, x, m.first))
    return torch.einsum("ect,ec,ech,ehd->td", send, weights, hidden, m.second)


def of_features(m, x, probs):
    top = x.topk(2).indices
    return every(m, x * torch.zeros_like(x).scatter(1, top, 1.0)).sum(1)


def results_in_order(m, x, probs):
    return every(m, x).sum(1).topk(4).values


def the_best(m, x, probs):
    results = every(m, x)
    best = results.square().mean(-1).argmax(-1)
    return results[torch.arange(len(x)), best]


def of_levels(m, x, probs):
    levels = [expert(x.roll(i, 0)) for i, expert in enumerate(m.experts)]
    return torch.stack(levels, 1)[torch.arange(len(x)), probs.argmax(-1)]


def in_slots(m, x, probs):
    chosen = probs.argmax(-1)
    place = chosen * 16 + torch.arange(len(x)) % 16
    send = torch.zeros(len(x), EXPERTS * 16).scatter(1, place[:, None], 1.0).unflatten(1, (EXPERTS, 16))
    hidden = F.gelu(torch.einsum("ecd,edh->ech", torch.einsum("tec,td->ecd", send, x), m.first))
    return torch.einsum("tec,ech,ehd->td", send, hidden, m.second)


OTHERS = [the_best, of_levels, in_slots, soft, most, routed, with_a_capacity, of_features, results_in_order]


@pytest.mark.parametrize("spelling", OTHERS, ids=lambda one: one.__name__)
def test_experts_whose_results_count_are_left_alone(spelling):
    found = faults(find(*recorded(lambda: (Mixture(spelling), torch.randn(64, WIDTH)))))
    assert not [one for one in found if one.title == "Every expert computes every token"]


def test_experts_that_all_count_are_still_one_batched_call():
    found = faults(find(*recorded(lambda: (Mixture(soft), torch.randn(64, WIDTH)))))
    assert [one for one in found if one.kind == "small-kernels" and "batched call" in one.change]

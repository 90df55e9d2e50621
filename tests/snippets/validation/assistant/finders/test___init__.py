"""Advice follows the pattern of the code, and where no advice is safe, there is none."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from snippets.validation.assistant.found import find
from tests.snippets.validation.planted.seen import evidence, faults, recorded

pytestmark = pytest.mark.usefixtures("one_core")


class Of(nn.Module):
    """A function as a module, with weights to use."""

    def __init__(self, function):
        super().__init__()
        self.function, self.f = function, nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.q, self.kv = (nn.ModuleList(nn.Linear(8, n) for _ in range(8)) for n in (8, 16))
        self.members = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(8))
        self.cell = nn.GRUCell(8, 8)
        near = (torch.arange(256)[:, None] - torch.arange(256)).abs() < 8
        self.register_buffer("near", near)
        self.register_buffer("wide", torch.linspace(0, 1, 8, dtype=torch.float64))

    def forward(self, *inputs):
        return self.function(self, *inputs)


def independent(m, x):
    return torch.stack([m.f(x[t]) for t in range(x.shape[0])])


def dependent(m, x):
    h = x[0]
    for t in range(x.shape[0]):
        h = m.f(h + x[t])
    return h


def hoisted(m, x):
    h = m.q[0](x[0])
    for t in range(x.shape[0]):
        h = torch.tanh(m.q[0](x[t]) + m.q[1](h))
    return h


def fed_back(m, x):
    h = x[0]
    for _ in range(12):
        h = m.cell(h.softmax(-1), h)
    return h


def ragged(m, x):
    return torch.stack([part.softmax(0).sum(0) for part in x.split([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])])


def listed(m, x):
    return torch.cat([part * 2 + 1 for part in x.split([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])])


def updated(m, x):
    with torch.no_grad():
        for i in range(8):
            m.kv[i].weight.lerp_(m.kv[i].weight * x.mean(), 0.01)
    return x


def ensemble(m, x):
    return torch.stack([member(x) for member in m.members])


def in_layers(m, x):
    for _ in range(3):
        index = (x @ x.mT).argmax(-1)
        x = torch.stack([one[rows] for one, rows in zip(x, index, strict=True)]).tanh()
    return x


def passed_on(m, x):
    found = []
    while len(x):
        found.append(x[0].softmax(-1).sum())
        x = x[1:]
    return torch.stack(found)


def read_weights(m, x):
    weights = (x @ x.transpose(-2, -1)).softmax(-1)
    return weights @ x, weights.amax(-1)


def masked_spread(m, x, known):
    count = known.sum(-1, keepdim=True)
    spread = ((x * known).square().sum(-1, keepdim=True) / count + 1e-5).sqrt()
    return x / spread


def shares(m, x):
    return (torch.sin(x[:, :, None] * m.f(x)[:, None]) * 2).sum(-1)


def density(m, x):
    return x.tanh() - x.pow(2) / 2 + x.log1p() * 3 - F.softplus(x)


def banded(m, x):
    return F.scaled_dot_product_attention(x, x, x, attn_mask=m.near)


def dispatched(m, x):
    place = F.one_hot(x[:, 0].argsort(), len(x)) * (x[:, :1] > 0)
    return place.float().T @ x


def validated(m, x):
    return torch.distributions.Normal(x, 1.0 + x.square(), validate_args=True).log_prob(x)


def inverted(m, x):
    return torch.linalg.inv(x.mT @ x + torch.eye(8)) @ x.mT


def inverted_by_method(m, x):
    return (x.mT @ x + torch.eye(8)).inverse() @ x.mT


def solved(m, x):
    return torch.linalg.solve(x.mT @ x + torch.eye(8), x.mT)


def factored(m, x):
    return torch.linalg.cholesky(x.mT @ x + torch.eye(8))


def from_numbers(m, x):
    return x * torch.tensor([2 * float(one) for one in m.f(x)[0, 0]])


def similar(m, x):
    return F.cosine_similarity(x[:, None], x[None], dim=-1)


def likelihood(m, x):
    p = x.sigmoid()
    return -(torch.log(p + 1e-7) * x).sum()


def mixture(m, x):
    return -torch.log((m.f(x).softmax(-1) * torch.exp(-x.square())).sum(-1) + 1e-30).mean()


def log_sum(m, x):
    return x.exp().sum(-1).log()


def normalized_twice(m, x):
    return F.cross_entropy(F.log_softmax(x, dim=1), x.argmax(1))


def normalized_over_rows(m, x):
    return F.cross_entropy(F.log_softmax(x, dim=0), x.argmax(1))


def repeated_rows(m, x):
    return m.f(x.repeat_interleave(6, dim=0))


def batch_twice(m, x):
    once, again = m.f(x.repeat(2, 1)).chunk(2)
    return once - again


def repeated_results(m, x):
    return m.f(x).repeat_interleave(6, dim=0)


def with_epsilon(m, x):
    return -torch.log(x.softmax(-1) + 1e-9).mean()


def promoted(m, x):
    return (x * m.wide).sin().exp().float()


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


def twice(m, x):
    return x.repeat(2, 1) * 2


def distances(m, x):
    return (x[:, None] - x[None]).pow(2).sum(-1)


RIGHT = {  # the function, shapes of its inputs, the kinds expected, and words of the change
    "independent turns": (independent, [(16, 4, 8)], {"small-kernels"}, "one batched call"),
    "dependent turns": (dependent, [(16, 4, 8)], set(), ""),
    "turns with work of their own": (hoisted, [(16, 4, 8)], {"small-kernels"}, "before the loop"),
    "a cell that reads its own result": (fed_back, [(4, 8)], set(), ""),
    "turns of several sizes": (ragged, [(55, 8)], {"small-kernels"}, "mask the rest"),
    "pointwise turns of several sizes": (listed, [(55, 8)], {"small-kernels"}, "torch._foreach_"),
    "updates": (updated, [(4, 8)], {"small-kernels"}, "_foreach_"),
    "independent turns in layers": (in_layers, [(8, 4, 8)], {"small-kernels"}, "one batched call"),
    "independent turns of what is left": (passed_on, [(16, 8)], {"small-kernels"}, "one batched call"),
    "ensemble": (ensemble, [(4, 8)], {"small-kernels"}, "one batched call"),
    "weights that are read": (read_weights, [(2, 4, 16, 8)], set(), ""),
    "a spread of what a mask counts": (masked_spread, [(64, 8), (64, 8)], set(), ""),
    "a sum of what is no product": (shares, [(32, 64, 8)], set(), ""),
    "a short run in each row": (banded, [(1, 2, 256, 8)], {"mask"}, "flex_attention"),
    "an inverse that checks": (inverted, [(4, 8, 8)], {"sync"}, "inv_ex"),
    "an inverse that checks, as a method": (inverted_by_method, [(4, 8, 8)], {"sync"}, "inv_ex"),
    "a solution that checks": (solved, [(4, 8, 8)], {"sync"}, "solve_ex"),
    "a factor that checks": (factored, [(4, 8, 8)], {"sync"}, "cholesky_ex"),
    "rows sent by a mask": (dispatched, [(64, 8)], {"temporary"}, "index_copy"),
    "similarities": (similar, [(64, 16)], {"temporary"}, "F.normalize"),
    "a likelihood of a mixture": (mixture, [(64, 8)], {"written-out"}, "torch.logsumexp"),
    "a logarithm of a sum of exponentials": (log_sum, [(64, 8)], {"written-out"}, "torch.logsumexp"),
    "a log-softmax before a cross-entropy": (normalized_twice, [(64, 16)], {"written-out"}, "the logits"),
    "a log-softmax over other than classes": (normalized_over_rows, [(64, 16)], set(), ""),
    "rows repeated before a layer": (repeated_rows, [(1024, 8)], {"wasted"}, "then repeat the rows"),
    "a batch for two purposes": (batch_twice, [(1024, 8)], set(), ""),
    "rows repeated after a layer": (repeated_results, [(1024, 8)], set(), ""),
    "a logarithm of a softmax and a little": (with_epsilon, [(64, 16)], {"written-out"}, "F.log_softmax"),
    "a logarithm of a sigmoid": (likelihood, [(64, 16)], {"written-out"}, "F.binary_cross_entropy_with_logits"),
    "a buffer in fp64": (promoted, [(64, 8)], {"precision"}, "float32 where it is made"),
    "from sizes only": (positions, [(2, 8)], {"small-kernels"}, "make it once"),
    "layers": (layers, [(2, 8, 8)], set(), ""),
    "bias and scale": (biased, [(2, 4, 16, 8), (1, 4, 16, 16)], {"attention"}, "attn_mask=what is added, scale=0.125"),
    "default scale": (default_scale, [(2, 4, 16, 8)], {"attention"}, "attention(q, k, v):"),
    "a whole tensor": (standard, [(64, 8)], set(), ""),
    "repeated mask": (repeated_mask, [(2, 4, 16, 8), (2, 1, 16, 16)], {"copy"}, "broadcasting"),
    "the batch twice": (twice, [(64, 8)], set(), ""),
    "distances": (distances, [(64, 16)], {"temporary"}, "donot_use_mm_for_euclid_dist"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_the_change_fits_the_pattern(name):
    function, shapes, kinds, words = RIGHT[name]
    found = faults(find(*recorded(lambda: (Of(function), *map(torch.randn, shapes)))))
    found = [one for one in found if one.kind != "cuda-graph"]
    assert {one.kind for one in found} == kinds and len(found) == len(kinds)
    assert all(words in one.change for one in found)


def test_a_tensor_of_numbers_that_were_read_is_no_constant():
    found = faults(find(*recorded(lambda: (Of(from_numbers), torch.randn(2, 4, 8)))))
    (made,) = [one for one in found if one.kind == "cuda-graph"]
    assert "on the device" in made.change and "once" not in made.change


def test_rows_that_a_mask_sends_are_not_tried_as_a_look_up():
    (found,) = faults(find(*recorded(lambda: (Of(dispatched), torch.randn(64, 8)))))
    assert found.rewrites == ()


def test_torch_compile_is_no_advice_for_what_it_cannot_capture():
    trace, captured = recorded(lambda: (Of(density), torch.rand(64, 8)))
    captured.error = "TorchRuntimeError"
    (change,) = [one.change for one in find(trace, captured) if one.kind == "chain"]
    assert change == "once torch.compile can capture the module, it makes one kernel of them"


def test_a_log_density_is_no_gelu():
    found = find(*recorded(lambda: (Of(density), torch.rand(64, 8))))
    assert [one.change for one in found if one.kind == "chain"] == ["torch.compile makes one kernel of them"]


def test_a_chain_that_moves_little_of_the_step_is_a_note():
    def deep(m, x):
        return (x.sin().exp().neg().tanh() + 0.5) * m.q[0](x).repeat(64, 1).sum()

    (found,) = [one for one in find(*evidence(lambda: (Of(deep), torch.randn(512, 8)))) if one.kind == "chain"]
    assert found.weight == "note"


def test_a_recurrence_alone_is_worth_knowing():
    found = find(*recorded(lambda: (Of(dependent), torch.randn(16, 4, 8))))
    (loop,) = [one for one in found if one.kind == "small-kernels"]
    assert loop.weight == "note" and "compile the step" in loop.change


def test_a_distribution_that_checks_its_arguments():
    found = faults(find(*recorded(lambda: (Of(validated), torch.randn(4, 8)))))
    waits = [one for one in found if one.kind == "sync"]
    assert waits and all("validate_args=False" in one.change for one in waits)


def factored(m, x):
    spread = torch.diag_embed(1.0 + x.square())
    return torch.distributions.MultivariateNormal(x, spread, validate_args=False).log_prob(x)


def test_a_distribution_that_factors_its_covariance_is_not_told_to_check_less():
    found = faults(find(*recorded(lambda: (Of(factored), torch.randn(4, 8)))))
    (wait,) = [one for one in found if one.kind == "sync"]
    assert "scale_tril=" in wait.change and "validate_args" not in wait.change


def picked_of_all(m, x):
    chosen = x[:, :3].argmax(-1)
    every = torch.einsum("tk,ekd->etd", x, torch.ones(3, 8, 4))
    return torch.einsum("te,etd->td", torch.nn.functional.one_hot(chosen, 3).float(), every)


def test_a_look_up_in_rows_of_several_dimensions_is_not_called_an_embedding():
    found = faults(find(*recorded(lambda: (Of(picked_of_all), torch.randn(16, 8)))))
    (look_up,) = [one for one in found if one.title == "A look-up written as a product"]
    assert look_up.change == "fetch what the ones select with an index"

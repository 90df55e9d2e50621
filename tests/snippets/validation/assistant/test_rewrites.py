"""Changes that a copy can be given: the same function with fewer calls, tried before they are told."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from snippets.validation.assistant import analyze, trials
from snippets.validation.assistant.report import as_text
from snippets.validation.assistant.verdict import Ratio

pytestmark = pytest.mark.usefixtures("one_core")


class Of(nn.Module):
    """A function as a module, with a weight, a bias and a table."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.w, self.b = nn.Parameter(torch.rand(32)), nn.Parameter(torch.rand(32))
        self.table = nn.Parameter(torch.randn(8, 32))

    def forward(self, *inputs):
        return self.function(self, *inputs)


def rms_norm(m, x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3) * m.w


def layer_norm(m, x):
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    return (x - mean) / torch.sqrt(variance + 1e-3) * m.w + m.b


def biased_attention(m, x, bias):
    return ((x @ x.transpose(-2, -1)) / 4 + bias).softmax(-1) @ x


def causal_attention(m, x):
    scores = x @ x.transpose(-2, -1) / math.sqrt(x.shape[-1])
    later = torch.ones(16, 16).triu(1).bool()
    return F.softmax(scores.masked_fill(later, float("-inf")), dim=-1) @ x


def distances(m, x):
    return (x[:, None] - x[None]).pow(2).sum(-1)


def look_up(m, ids):
    return F.one_hot(ids, 8).float() @ m.table


def softmax(m, x):
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


def gelu(m, x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3))))


def sinusoids(m, x):
    return x + torch.arange(32).mul(-0.3).exp().sin().cos()


def copies(m, x):
    return F.linear(x.transpose(0, 1).contiguous(), m.table[:, :16])


X = torch.randn(16, 32, generator=torch.Generator().manual_seed(0))
CASES = {
    rms_norm: (X,),
    layer_norm: (X,),
    biased_attention: (X.view(2, 16, 16), X[:, :16]),
    causal_attention: (X,),
    distances: (X.repeat(4, 1).add(torch.arange(64)[:, None]),),
    look_up: (torch.arange(16) % 8,),
    softmax: (X,),
    gelu: (X,),
    sinusoids: (X,),
    copies: (X,),
}


def report_of(function, monkeypatch, ratio):
    monkeypatch.setattr(trials, "beside", lambda *_: ratio)
    monkeypatch.setattr("snippets.validation.assistant.try_all", lambda *_: [])  # changes of the whole module
    return analyze(Of(function), *CASES[function], measure=True)


@pytest.mark.parametrize("function", CASES, ids=lambda one: one.__name__)
def test_what_is_right_and_faster_is_told_so(function, monkeypatch):
    report = report_of(function, monkeypatch, Ratio(1.9, 2.0, 2.1))
    (found,) = [one for one in report.findings if one.rewrites and one.weight == "finding"]
    assert found.helps and "(a step is 2.00x (1.90 to 2.10) faster)" in " ".join(as_text(report).split())


@pytest.mark.parametrize(
    ("ratio", "helps", "word"),
    [
        (Ratio(0.9, 1.0, 1.1), False, "no faster"),
        (Ratio(0.9, 1.4, 2.0), None, "not decided"),
        (Ratio(0.6, 0.99, 1.7), None, "not decided"),
    ],
)
def test_what_is_no_faster_is_no_advice(ratio, helps, word, monkeypatch):
    report = report_of(rms_norm, monkeypatch, ratio)
    (found,) = [one for one in report.findings if one.kind == "norm"]
    assert found.helps is helps and found.tried.startswith(word)
    assert (found in report.of("fusion")) == (helps is None)


def test_what_gives_other_results_is_no_advice(monkeypatch):
    monkeypatch.setattr("snippets.validation.assistant.finders.memory.as_it_is", lambda x: x + 1e-3)
    report = report_of(copies, monkeypatch, Ratio(1.9, 2.0, 2.1))
    text = as_text(report)
    assert not report.of("memory") and "gives other results" in text and "change  leave out" not in text


def test_what_cannot_be_tried_is_marked():
    def loop(m, x):
        return torch.stack([torch.tanh(x[t] * m.w) for t in range(16)])

    assert "one batched call (not tried)" in " ".join(as_text(analyze(Of(loop), X)).split())


def test_without_a_gpu_nothing_is_tried_that_nobody_asked_for():
    assert [one.tried for one in analyze(Of(rms_norm), X).findings if one.rewrites] == [""]


def test_the_compiler_is_no_advice_where_it_may_lose(monkeypatch):
    def products(m, x):
        y = (x.sigmoid() * 0.9 + 0.1).cumprod(-1)
        return y * x.sin() * x.cos() + x.exp() - x.tanh() * y.sigmoid()

    x = torch.randn(64, 512, requires_grad=True)
    chains = [one for one in analyze(Of(products), x).findings if one.kind == "chain" and one.weight == "finding"]
    assert chains and all(one.helps is False and "cumprod" in one.tried for one in chains)

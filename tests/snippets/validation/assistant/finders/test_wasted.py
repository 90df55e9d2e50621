"""Work that nothing reads, or that another order would save."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from snippets.validation.assistant.finders.wasted import at_an_end
from snippets.validation.assistant.found import find
from tests.snippets.validation.planted.seen import evidence, faults

pytestmark = pytest.mark.usefixtures("one_core")


class Of(nn.Module):
    """A function as a module, with weights to use."""

    def __init__(self, function):
        super().__init__()
        self.function, self.f, self.g = function, nn.Linear(64, 64), nn.Linear(64, 64)
        self.experts = nn.Parameter(torch.randn(4, 64, 64))
        self.up, self.down = nn.Parameter(torch.randn(64, 4)), nn.Parameter(torch.randn(4, 64))
        self.register_buffer("source", torch.arange(16))

    def forward(self, x):
        return self.function(self, x)


def last_row(m, x):
    return m.f(x)[:, -1].relu()


def few_columns(m, x):
    return (m.f(x) * 2).gather(-1, x.argmax(-1, keepdim=True))


def best(m, x):
    order = m.f(x).flatten(1).argsort(-1, descending=True)
    return x.flatten(1).gather(1, order[:, :4])


def of_edges(m, x):
    return m.f(x[:, m.source[:, None].expand(16, 8).flatten()])


def of_tokens(m, x):
    chosen = m.f(x).flatten(0, 1).argmax(-1) % 4
    return torch.einsum("td,tde->te", x.flatten(0, 1), m.experts[chosen])


def teacher(m, x):
    goal = m.f(x).relu()
    return F.mse_loss(m.g(x), goal.detach())


def drops(m, x):
    return F.dropout(m.f(x), 0.5)


def lora(m, x):
    return F.linear(x, m.f.weight.detach() + 2 * (m.up @ m.down), m.f.bias)


def lora_by_matmul(m, x):
    return x @ (m.up @ m.down + m.f.weight.detach())


def lora_of_few_rows(m, x):
    return F.linear(x[0, :4], m.f.weight + m.up @ m.down)


@torch.no_grad()
def lora_without_gradients(m, x):
    return lora(m, x)


FOUND = {
    lora: "one thin matrix",
    lora_by_matmul: "one thin matrix",
    lora_of_few_rows: "one thin matrix",
    lora_without_gradients: "merge it into the weight once",
    last_row: "pick the rows first",
    few_columns: "rows of the weight first",
    best: "torch.topk",
    of_edges: "multiply first",
    of_tokens: "grouped_mm",
    teacher: "torch.no_grad()",
    drops: "self.training",
}


def wasted(function, training=True):
    made = evidence(lambda: (Of(function).train(training), torch.randn(4, 16, 64)), sizes=False)
    return [one for one in faults(find(*made)) if one.kind in ("wasted", "experts")]


@pytest.mark.parametrize("function", FOUND)
def test_what_is_wasted_is_found(function):
    (found,) = wasted(function, training=function is not drops)
    assert FOUND[function] in found.change


def thin(m, x):
    return m.f(x) + 2 * (x @ m.down.T) @ m.up.T


def lora_and_weight_trained(m, x):  # whose gradient is needed in full
    return F.linear(x, m.f.weight + m.up @ m.down)


def full_rank(m, x):
    return F.linear(x, m.f.weight + m.g.weight @ m.f.weight)


def of_data(m, x):
    return F.linear(x, m.f.weight + x[0].mT[:, :4] @ x[0, :4])


def gate(m, x):
    return F.linear(x, m.f.weight * (m.up @ m.down))


def both_halves(m, x):
    a, b = m.f(x).chunk(2, -1)
    return a[:, -1] * b.sum(1)


def most(m, x):
    return m.f(x)[:, :12].relu()


def returned(m, x):
    y = m.f(x)
    return y, y[:, -1].relu()


def residual(m, x):
    return (x + m.f(x))[:, -1].relu()


def median(m, x):
    return m.f(x).sort(-1).values[..., 16:48]


def of_nodes(m, x):
    return m.f(x)[:, m.source[:, None].expand(16, 8).flatten()]


def student(m, x):
    y = m.f(x).relu()
    return F.mse_loss(m.g(x), y.detach()) + y.mean()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def by_function(m, x):
    return Doubled.apply(m.f(x))


NEEDED = [
    thin,
    lora_and_weight_trained,
    full_rank,
    of_data,
    gate,
    both_halves,
    most,
    returned,
    residual,
    median,
    of_nodes,
    student,
    by_function,
]


@pytest.mark.parametrize("function", [*NEEDED, drops])
def test_what_is_needed_is_left_alone(function):
    assert not wasted(function)


class Observed(nn.Module):
    """A scale by what a function observes of the activations."""

    def __init__(self, observe):
        super().__init__()
        self.observe, self.f = observe, nn.Linear(64, 64)

    def forward(self, x):
        y = self.f(x)
        return y / self.observe(y.detach())


SELECTED = {
    "a quantile": (lambda y: torch.quantile(y.flatten(), 0.99), "topk of the 83 largest"),
    "a low quantile": (lambda y: y.quantile(0.01), "topk of the 83 least"),
    "the middle": (lambda y: torch.quantile(y, 0.5), "estimate"),
    "several quantiles": (lambda y: torch.quantile(y, torch.tensor([0.1, 0.9]))[1], "estimate"),
    "median": (lambda y: y.abs().median(), "estimate"),
    "kthvalue": (lambda y: y.flatten().kthvalue(8000).values, "estimate"),
    "a sort, and an end": (lambda y: y.flatten().sort().values[-80], "topk"),
    "a sort, and the middle": (lambda y: y.flatten().sort().values[4096], "kthvalue"),
}


@pytest.mark.parametrize(("observe", "change"), SELECTED.values(), ids=SELECTED)
def test_one_number_of_all_by_its_rank_is_found(observe, change):
    found = faults(find(*evidence(lambda: (Observed(observe), torch.randn(128, 64)), sizes=False)))
    (one,) = [each for each in found if each.title == "All is sorted to take a few"]
    assert "8192 numbers" in one.evidence and change in one.change


@pytest.mark.parametrize(
    "observe",
    [
        lambda y: y.median(-1, keepdim=True).values,
        lambda y: y.quantile(0.9, dim=-1, keepdim=True),
        lambda y: y[::16, ::8].quantile(0.9),
        lambda y: y.kthvalue(3, dim=0).values,
        lambda y: y.abs().amax(),
    ],
    ids=["median of rows", "quantile of rows", "a sample", "kthvalue of columns", "the largest"],
)
def test_short_rows_and_samples_are_left_alone(observe):
    found = find(*evidence(lambda: (Observed(observe), torch.randn(128, 64)), sizes=False))
    assert not [one for one in found if one.title == "All is sorted to take a few"]


@pytest.mark.parametrize("share", [0.001, 0.01, 0.99, 0.999])
def test_a_quantile_near_an_end_lies_between_the_last_two_of_topk(share):
    x = torch.randn(4097, generator=torch.Generator().manual_seed(0))
    most = int(at_an_end(share, len(x)).split()[3])
    ends = x.topk(most, largest=share > 0.5).values[-2:]
    assert ends.min() <= x.quantile(share) <= ends.max()


class Suppressed(nn.Module):
    """Sorts what a threshold leaves, which may be nothing."""

    def forward(self, x):
        left = x[x > 9]
        return x.sum() + left[left.argsort()[left > 9.5]].sum()


def test_a_sort_of_nothing_is_left_alone():
    found = find(*evidence(lambda: (Suppressed(), torch.rand(64)), sizes=False))
    assert not [one for one in found if one.title == "All is sorted to take a few"]

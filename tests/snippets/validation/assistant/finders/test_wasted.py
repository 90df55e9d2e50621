"""Work that nothing reads, or that another order would save."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from snippets.validation.assistant.finders.wasted import at_an_end
from snippets.validation.assistant.found import find
from snippets.validation.assistant.rewrites import Rewritten
from tests.snippets.validation.planted.seen import DEVICE, faults, recorded

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
    made = recorded(lambda: (Of(function).train(training), torch.randn(4, 16, 64)))
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


class Pixels(nn.Module):
    """A function of a picture of few pixels, with convolutions of one pixel and of nine."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.one, self.other, self.nine = nn.Conv2d(64, 32, 1), nn.Conv2d(64, 16, 1), nn.Conv2d(64, 32, 3, padding=1)
        self.f, self.wide = nn.Linear(64, 32), nn.Conv2d(64, 512, 1)
        self.heads = nn.Parameter(torch.randn(8, 64, 32))

    def forward(self, x):
        return self.function(self, x)


def larger(x, **how):
    return F.interpolate(x, scale_factor=4, mode="bilinear", **how)


def enlarged(m, x):
    return m.one(larger(x)).relu()


def enlarged_without_bias(m, x):
    return F.conv2d(F.interpolate(x, (32, 32)), m.one.weight)


def enlarged_for_two(m, x):
    y = larger(x, align_corners=True)
    return m.one(y).mean() + m.other(y).mean()


def enlarged_for_linear(m, x):
    return m.f(larger(x).permute(0, 2, 3, 1)).relu()


def one_for_all_pixels(m, x):
    return m.one(x.mean((2, 3), keepdim=True).expand(-1, -1, 16, 16)) * m.one(x).mean()


def one_for_all_rows(m, x):
    y = x.flatten(2).mT
    return m.f(y.mean(1, keepdim=True).expand(-1, 64, -1)) * y.mean()


PIXELS = {
    enlarged: ("then interpolate", True),
    enlarged_without_bias: ("then interpolate", True),
    enlarged_for_two: ("then interpolate", False),
    enlarged_for_linear: ("then interpolate", False),
    one_for_all_pixels: ("then repeat", False),
    one_for_all_rows: ("then repeat", False),
}


def of_pixels(function):
    torch.manual_seed(0)
    module, x = Pixels(function), torch.randn(2, 64, 8, 8, device=DEVICE)
    found = [one for one in faults(find(*recorded(lambda: (module, x)))) if one.kind == "wasted"]
    for one in found:
        torch.testing.assert_close(Rewritten(module, one.rewrites)(x), module(x))
    return found


@pytest.mark.parametrize("function", PIXELS, ids=lambda one: one.__name__)
def test_each_pixel_by_itself_is_multiplied_before_there_are_more(function):
    change, tried = PIXELS[function]
    one, *_ = of_pixels(function)
    assert change in one.change and bool(one.rewrites) == tried


def of_neighbours(m, x):
    return m.nine(larger(x))


def normalized(m, x):
    return m.one(larger(x).relu())


def read_as_it_is(m, x):
    y = larger(x)
    return m.one(y).mean() * y


def smaller(m, x):
    return m.one(F.interpolate(x, scale_factor=0.5))


def many_channels(m, x):
    return m.wide(larger(x))


def a_matrix_for_each(m, x):
    return x.flatten(2).mT[0].expand(8, -1, -1) @ m.heads


def a_matrix_for_each_copy(m, x):
    return x.flatten(2).mT[0].unsqueeze(0).repeat(8, 1, 1) @ m.heads


def a_matrix_for_each_index(m, x):
    index = torch.arange(64, device=x.device).repeat(8, 1)
    return torch.einsum("epd,edk->epk", x.flatten(2).mT[0][index], m.heads)


def mixed_along_the_width(m, x):
    return m.f(F.interpolate(x[..., 0], size=64))  # by chance as wide as there are channels


def in_order(m, x):
    return larger(m.one(x))


@pytest.mark.parametrize(
    "function",
    [
        of_neighbours,
        a_matrix_for_each,
        a_matrix_for_each_copy,
        a_matrix_for_each_index,
        mixed_along_the_width,
        normalized,
        read_as_it_is,
        smaller,
        many_channels,
        in_order,
    ],
    ids=lambda one: one.__name__,
)
def test_pixels_that_are_not_multiplied_by_themselves_are_left_alone(function):
    assert not of_pixels(function)


def test_rows_that_an_index_repeats_are_picked_after_the_product_to_be_tried():
    index = torch.arange(16).repeat(64)
    module = Of(lambda m, x: m.f(x[index]).relu())
    (one,) = [each for each in find(*recorded(lambda: (module, torch.randn(16, 64)))) if each.rewrites]
    x = torch.randn(16, 64, device=DEVICE)
    torch.testing.assert_close(Rewritten(module, one.rewrites)(x), module(x))


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
    found = faults(find(*recorded(lambda: (Observed(observe), torch.randn(128, 64)))))
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
    found = find(*recorded(lambda: (Observed(observe), torch.randn(128, 64))))
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
    found = find(*recorded(lambda: (Suppressed(), torch.rand(64))))
    assert not [one for one in found if one.title == "All is sorted to take a few"]

"""Derivatives inside a forward, and functions that keep their own results."""

import pytest
import torch
from torch import nn

from snippets.validation.assistant.found import find
from tests.snippets.validation.planted.seen import faults, recorded

pytestmark = pytest.mark.usefixtures("one_core")


class Of(nn.Module):
    """A function of a net and of points that want gradients."""

    def __init__(self, function):
        super().__init__()
        self.function, self.f = function, nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))

    def forward(self, x):
        return self.function(self, x.detach().requires_grad_())


def derivative(y, x):
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


def by_each(m, x):
    a, b = x, x.detach().cos().requires_grad_()
    u = m.f(a + b)
    first = derivative(u, a)
    return first + derivative(u, b)


def by_rows(m, x):
    y = m.f(x)
    return sum(torch.autograd.grad(y[:, i].sum(), x, create_graph=True)[0][:, i] for i in range(8))


def by_directions(m, x):
    y = m.f(x)
    return sum(torch.autograd.grad(y, x, row.expand_as(y), create_graph=True)[0] for row in torch.eye(8))


def by_outputs(m, x):
    rows = [derivative(one, x) for one in m.f(x).unbind(-1)]
    return torch.stack(rows).sum(0)


def by_samples(m, x):
    y = m.f(x.repeat(2, 1)).sum(-1)
    return torch.stack([torch.autograd.grad(y[i], x, create_graph=True)[0].sum(0) for i in range(8)])


def by_jacobian(m, x):
    return x + torch.autograd.functional.jacobian(lambda one: m.f(one).sum(0), x).sum(0)


def second_by_dimensions(m, x):
    first = derivative(m.f(x), x)
    return sum(derivative(first[:, i], x)[:, i] for i in range(8))


def by_points(m, x):
    u = m.f(x).sum(-1)
    rows = []
    for i in range(len(x)):
        rows.append(torch.autograd.grad(u[i], x, create_graph=True)[0][i])
    return torch.stack(rows)


def twice_by_points(m, x):
    u, rows = m.f(x).sum(-1), []
    for i, each in enumerate(u.unbind()):
        g = torch.autograd.grad(each, x, create_graph=True)[0]
        rows.append(torch.autograd.grad(g[i, 0], x, create_graph=True)[0][i : i + 1])
    return torch.cat(rows)


def column_by_column(m, x):
    u = m.f(x)
    return torch.stack([torch.autograd.grad(u.sum(), x, create_graph=True)[0][:, axis] for axis in range(3)])


def column_by_column_of_ones(m, x):
    u = m.f(x)
    return derivative(u, x)[:, 0] + derivative(u, x)[:, 1]


FOUND = {
    by_each: ("as a tuple", 3),
    by_rows: ("is_grads_batched", 1),
    by_directions: ("is_grads_batched", 1),
    by_outputs: ("is_grads_batched", 2),
    by_samples: ("of the sum", 1),
    by_points: ("its own row of the derivative alone: one torch.autograd.grad of the sum", 1),
    twice_by_points: ("of the sum of the column that is differentiated again", 2),
    by_jacobian: ("jacrev", 1),
    second_by_dimensions: ("is_grads_batched", 2),
    column_by_column: ("call torch.autograd.grad once", 1),
    column_by_column_of_ones: ("call torch.autograd.grad once", 2),
}


@pytest.mark.parametrize("function", FOUND, ids=lambda one: one.__name__)
def test_derivatives_one_by_one_are_found(function):
    found = faults(find(*recorded(lambda: (Of(function), torch.randn(4, 8)))))
    (one,) = [one for one in found if "one by one" in one.title]
    change, lines = FOUND[function]
    assert ("of the sum" in one.change) == (function in (by_samples, by_jacobian, by_points, twice_by_points))
    batched, of_sum = one.change.find("is_grads_batched"), one.change.find("of the sum")
    assert of_sum < 0 or batched < 0 or of_sum < batched
    assert change in one.change and len(one.lines) == lines
    assert one.line.function in (function.__name__, "<genexpr>", "<listcomp>")


def rows(take, of=lambda u: u):
    """The derivative of what is taken of each row, at that row."""

    def each(m, x):
        u = of(m.f(x))
        given = [torch.autograd.grad(*take(u, x, i), create_graph=True)[0][i] for i in range(len(x))]
        return torch.stack(given)

    return each


def entries(m, x):
    u = m.f(x)
    given = [[torch.autograd.grad(u[i, j], x, create_graph=True)[0][i] for j in range(3)] for i in range(len(x))]
    return torch.stack([torch.stack(row) for row in given])


def of_one_row(m, x):
    u = m.f(x)
    return torch.stack([torch.autograd.grad(u[0, j], x, create_graph=True)[0][0] for j in range(8)])


def averaged_rows(m, x):
    u = m.f(x)
    return torch.stack([torch.autograd.grad(u[i].mean(), x, create_graph=True)[0].sum(0) for i in range(len(x))])


BATCHED, COLUMNS = "one torch.autograd.grad with is_grads_batched=True", "for each column, of that column's sum"
OF_SUM = "one torch.autograd.grad of the sum"
ROWS = [
    (entries, COLUMNS),
    (rows(lambda u, x, i: (u[i, 0], x)), COLUMNS),
    (of_one_row, BATCHED),
    (rows(lambda u, x, i: (u[i], x, x.detach()[i].sin())), BATCHED),
    (rows(lambda u, x, i: (u[i].mean(), x)), BATCHED),
    (averaged_rows, BATCHED),
    (rows(lambda u, x, i: (u[i].sum().view(1), x)), BATCHED),
    (rows(lambda u, x, i: (u[i], x), lambda u: u.mean(-1)), OF_SUM),
    (rows(lambda u, x, i: (u[i].sum(), x)), OF_SUM),
    (rows(lambda u, x, i: (u[i], x, torch.ones_like(u[i]))), OF_SUM),
]


@pytest.mark.parametrize(("function", "change"), ROWS)
def test_one_derivative_gives_all_rows_where_it_gives_the_same(function, change):
    found = faults(find(*recorded(lambda: (Of(function), torch.randn(4, 8)))))
    (one,) = [one for one in found if "one by one" in one.title]
    assert [text for text in (BATCHED, COLUMNS, OF_SUM) if text in one.change] == [change]


def test_one_derivative_for_each_column_gives_all_rows():
    x, w = torch.randn(6, 4, requires_grad=True), torch.randn(4, 3)
    u = (x @ w).tanh()
    columns = torch.stack([torch.autograd.grad(u[:, j].sum(), x, retain_graph=True)[0] for j in range(3)], 1)
    for i in range(6):
        for j in range(3):
            torch.testing.assert_close(columns[i, j], torch.autograd.grad(u[i, j], x, retain_graph=True)[0][i])


def together(m, x):
    a, b = x, x.detach().cos().requires_grad_()
    u = m.f(a + b).sum()
    return sum(torch.autograd.grad(u, (a, b), create_graph=True))


def second(m, x):
    first = derivative(m.f(x), x)
    return derivative(first.square(), x)


def of_two_results(m, x):
    a, b = x, x.detach().cos().requires_grad_()
    return derivative(m.f(a), a) + derivative(m.f(b), b)


def of_three_rows(m, x):
    y = m.f(x)
    return sum(torch.autograd.grad(y[:, i].sum(), x, create_graph=True)[0] for i in range(3))


def of_two_directions(m, x):
    y = m.f(x)
    return sum(torch.autograd.grad(y, x, along, create_graph=True)[0] for along in (x.sin(), x.cos()))


def of_sums(m, x):
    u_x = torch.autograd.grad(m.f(x).sum(), x, create_graph=True)[0]
    return torch.autograd.grad(u_x[:, 0].sum(), x, create_graph=True)[0][:, 0]


LEFT_ALONE = [of_sums, together, second, of_two_results, of_three_rows, of_two_directions]


@pytest.mark.parametrize("function", LEFT_ALONE, ids=lambda one: one.__name__)
def test_other_derivatives_are_left_alone(function):
    found = faults(find(*recorded(lambda: (Of(function), torch.randn(4, 8)))))
    assert not [one for one in found if "one by one" in one.title]


class StoresResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        ctx.y, ctx.twice = y, 2 * x
        return y

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (1 - ctx.y.square())


class StoresOthers(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        ctx.twice = 2 * x
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (1 - ctx.saved_tensors[0].square())


@pytest.mark.parametrize("function", [StoresResult, StoresOthers])
def test_a_result_that_its_function_stores_refers_to_itself(function):
    def apply(m, x):
        return function.apply(m.f(x))

    found = faults(find(*recorded(lambda: (Of(apply), torch.randn(4, 8)))))
    lines = [one.line.text for one in found if one.kind == "kept-graph"]
    assert lines == (["ctx.y, ctx.twice = y, 2 * x"] if function is StoresResult else [])


class Saving(torch.autograd.Function):
    """x, doubled and made positive, in steps of which some are saved."""

    @classmethod
    def forward(cls, ctx, x, scale):
        scaled = x / scale
        rounded = scaled.round()
        clipped = rounded.clamp(-4, 4)
        cls.save(ctx, x, scaled, rounded, clipped)
        return clipped * scale

    @classmethod
    def backward(cls, ctx, grad):
        return grad, None


class All(Saving):
    @staticmethod
    def save(ctx, *steps):
        ctx.save_for_backward(*steps)


class Named(Saving):
    @staticmethod
    def save(ctx, x, scaled, rounded, clipped):
        ctx.rounded, ctx.clipped = rounded, clipped
        ctx.save_for_backward(x)


class Ends(Saving):
    @staticmethod
    def save(ctx, x, scaled, rounded, clipped):
        ctx.save_for_backward(x, clipped)


class Input(Saving):
    @staticmethod
    def save(ctx, x, scaled, rounded, clipped):
        ctx.save_for_backward(x)


class Mask(Saving):
    @staticmethod
    def save(ctx, x, scaled, rounded, clipped):
        ctx.save_for_backward(rounded == clipped)


class InputAndMask(Saving):
    @staticmethod
    def save(ctx, x, scaled, rounded, clipped):
        ctx.save_for_backward(x, rounded == clipped)


class Drawn(Saving):
    @staticmethod
    def save(ctx, x, scaled, rounded, clipped):
        ctx.save_for_backward(x, nn.functional.dropout(clipped, 0.5))


class Product(Saving):
    @staticmethod
    def save(ctx, x, scaled, rounded, clipped):
        ctx.save_for_backward(x, x @ x.T @ clipped)


class Through(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function, self.f = function, nn.Linear(64, 64)
        self.register_buffer("scale", torch.full((), 0.1))

    def forward(self, x):
        return self.function.apply(self.f(x), self.scale)


def saves_in_vain(function):
    found = faults(find(*recorded(lambda: (Through(function), torch.randn(64, 64)))))
    return [one for one in found if one.title == "A function saves what it can compute again"]


@pytest.mark.parametrize(("function", "saved", "spare"), [(All, 4, 3), (Named, 3, 2), (Ends, 2, 1)])
def test_what_a_function_saves_and_can_compute_is_found(function, saved, spare):
    (one,) = saves_in_vain(function)
    assert f"{function.__name__} saves {saved} tensors, and {spare} of them are" in one.evidence
    assert f"{spare * 16.384:.1f} KB of the" in one.evidence and "4.1 KB for the largest" in one.change
    assert "rounded.clamp" in "".join(line.text for line in one.lines)


@pytest.mark.parametrize("function", [Input, Mask, InputAndMask, Drawn, Product], ids=lambda one: one.__name__)
def test_what_a_function_has_to_save_is_left_alone(function):
    assert not saves_in_vain(function)

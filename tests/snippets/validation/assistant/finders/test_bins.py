"""Numbers that are compared with all of a table, and comparisons that are needed."""

import pytest
import torch
from torch import nn

from snippets.validation.assistant.found import find
from snippets.validation.assistant.rewrites import Rewritten, Unfit
from tests.snippets.validation.planted.seen import DEVICE, faults, recorded

pytestmark = pytest.mark.usefixtures("one_core")


class Of(nn.Module):
    """A function of numbers, with edges in order and without."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.register_buffer("row", torch.randn(255).sort().values)
        self.register_buffer("mixed", torch.randn(255))
        self.register_buffer("rows", torch.randn(8, 255).sort(-1).values)
        self.trained = nn.Parameter(self.row.clone())

    def forward(self, x):
        return self.function(self, x)


def found_in(function):
    torch.manual_seed(0)
    module, x = Of(function), torch.randn(1024, 8, device=DEVICE).round(decimals=1)
    found = faults(find(*recorded(lambda: (module, x))))
    found = [one for one in found if one.title.startswith("Numbers are compared")]
    for one in found:
        assert torch.equal(Rewritten(module, one.rewrites)(x), module(x))
    return found


def by_rows(m, x):
    return (x.unsqueeze(-1) > m.rows).sum(dim=-1)


def by_row(m, x):
    return (m.row <= x[..., None]).long().sum(-1)


def left_over(m, x):
    return (x[..., None] < m.row).sum(-1)


def of_mixed(m, x):
    return torch.ge(x[..., None], m.mixed).sum(-1)


def along_the_first(m, x):
    return torch.count_nonzero(m.row[:, None, None] < x, dim=0)


def first(m, x):
    return (x[..., None] <= m.row).int().argmax(-1)


def member(m, x):
    return (x[..., None] == m.mixed).any(-1)


def beyond(m, x):
    return (x[..., None] > m.mixed).all(-1)


def rank(m, x):
    y = x[:, 0]
    return (y[:, None] > y).sum(-1)


def named(m, x):
    return torch.gt(x[..., None], other=m.row).sum(-1)


def of_trained(m, x):
    return (x[..., None] > m.trained).sum(-1)


def of_made(m, x):
    return (x[..., None] > torch.linspace(-2, 2, 255, device=x.device)).sum(-1)


def of_columns(m, x):
    y, edges = x.view(32, 1, 256), m.mixed[:144, None].expand(144, 256)
    return (y > edges).sum(1)


def of_whole(m, x):
    return (x.long()[..., None] > torch.arange(255, device=x.device)).sum(-1)


def beyond_rows(m, x):
    return (x.view(8, 1024, 1) > m.rows[:, None, :]).any(-1)


def where_first(m, x):
    return (x[..., None] < m.row).max(-1).indices


FOUND = {
    by_rows: ("torch.searchsorted(edges, x, right=False)", True),
    by_row: ("torch.bucketize(x, edges, right=True)", True),
    left_over: ("their number less torch.bucketize(x, edges, right=True)", True),
    of_mixed: ("sort the edges", True),
    along_the_first: ("torch.bucketize(x, edges, right=False)", False),
    first: ("torch.bucketize(x, edges, right=False)", False),
    member: ("torch.isin", False),
    beyond: ("table.amax()", False),
    rank: ("sort the edges", True),
    named: ("torch.bucketize(x, edges, right=False)", True),
    of_trained: ("sort the edges, once if they are a buffer, and torch.bucketize", True),
    of_made: ("torch.bucketize(x, edges, right=False)", True),
    of_columns: ("sort the edges", False),
    of_whole: ("torch.bucketize(x, edges, right=False)", True),
    beyond_rows: ("table.amin(-1)", False),
    where_first: ("torch.bucketize(x, edges, right=True)", False),
}


@pytest.mark.parametrize("function", FOUND, ids=lambda one: one.__name__)
def test_a_place_in_a_table_is_a_search(function):
    (one,) = found_in(function)
    change, tried = FOUND[function]
    assert change in one.change and bool(one.rewrites) == tried
    assert one.line.function == function.__name__


@pytest.mark.parametrize("function", [by_row, of_made, of_whole], ids=lambda one: one.__name__)
def test_edges_that_are_in_order_and_stay_so_are_not_sorted(function):
    (one,) = found_in(function)
    assert one.change.startswith("torch.bucketize")


@pytest.mark.parametrize(
    ("function", "differs"), [(by_row, True), (by_rows, True), (left_over, False), (of_whole, False), (beyond, False)]
)
def test_what_would_count_nan_says_so(function, differs):
    (one,) = found_in(function)
    assert ("; NaN in x would count as above all" in one.change) == differs


def test_nan_is_above_all_edges_of_a_search():
    nan, edges = torch.tensor([float("nan")]), torch.arange(3.0)
    for right in (False, True):
        assert torch.bucketize(nan, edges, right=right).item() == 3
    assert (nan[:, None] >= edges).sum() == (nan[:, None] < edges).sum() == 0


def test_rows_that_are_not_the_last_of_x_are_not_tried():
    module, x = Of(lambda m, x: (x.view(8, 1024, 1) > m.rows[:, None, :]).sum(-1)), torch.randn(1024, 8, device=DEVICE)
    (one,) = (one for one in find(*recorded(lambda: (module, x))) if one.title.startswith("Numbers are c"))
    with pytest.raises(Unfit):
        Rewritten(module, one.rewrites)(x)


def first_of_mixed(m, x):
    return (x[..., None] <= m.mixed).int().argmax(-1)


def weighed(m, x):
    return ((x[..., None] > m.row) * m.mixed).sum(-1)


def kept(m, x):
    above = x[..., None] > m.row
    return above, above.sum(-1)


def kept_as_numbers(m, x):
    above = (x[..., None] > m.row).float()
    return above, above.sum(-1)


def kept_beside(m, x):
    above = x[..., None] > m.row
    return above.long(), above.sum(-1)


def whether(m, x):
    return (x[..., None] < m.row).max(-1).values


def first_of_trained(m, x):
    return (x[..., None] <= m.trained).int().argmax(-1)


def near(m, x):
    return ((x[:, None] - x[None, :, :1]).square().sum(-1) < 4).sum(-1)


def below(m, x):
    return (x.repeat(1, 128) > 0.5).sum(-1)


def few_edges(m, x):
    return (x[..., None] > m.row[:4]).sum(-1)


def searched(m, x):
    return torch.bucketize(x, m.row)


def turned(m, x):
    return torch.gt(other=m.row, input=x[..., None]).sum(-1)


NEEDED = [
    turned,
    kept_as_numbers,
    kept_beside,
    whether,
    first_of_trained,
    first_of_mixed,
    weighed,
    kept,
    near,
    below,
    few_edges,
    searched,
]


@pytest.mark.parametrize("function", NEEDED, ids=lambda one: one.__name__)
def test_other_comparisons_are_left_alone(function):
    assert not found_in(function)

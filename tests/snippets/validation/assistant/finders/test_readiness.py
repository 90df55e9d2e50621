"""What keeps compilation and CUDA graphs away: what to do about a tensor that is made on the host."""

import inspect
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.exc import Unsupported

from snippets.validation.assistant.finders.readiness import device_named, graph_breaks
from snippets.validation.assistant.found import find
from snippets.validation.assistant.graphs import Break, Captured
from snippets.validation.assistant.lines import Line
from tests.snippets.validation.planted.seen import evidence, faults, hits, with_fault

pytestmark = pytest.mark.usefixtures("one_core")


BUFFER = "make it once, as a buffer of the module"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("positions on host", f"{BUFFER}, or make it where it is used, with device=ids.device"),
        ("constant on host", BUFFER),  # with device= its numbers are copied all the same
        ("table on host", BUFFER),
        ("listed places", BUFFER),
    ],
)
def test_what_is_made_on_the_host_can_be_made_on_the_device_that_its_line_names(name, change):
    (found,) = hits(find(*with_fault(name)))
    assert found.change == change


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("positions.to(ids.device)", "device=ids.device"),
        ("mask.to(device=self.weight.device, dtype=x.dtype)", "device=self.weight.device"),
        ("x = self.tokens(ids) + positions.to(ids.device)", "device=ids.device"),
        ("torch.arange(4, device=q.device), mask.cuda()", "the device= of a tensor that is there already"),
    ],
)
def test_the_device_is_the_one_that_the_authors_line_names(line, expected):
    assert device_named([SimpleNamespace(text=line)]) == expected


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function, self.f, self.count, self.rate = function, nn.Linear(8, 8), 0, 1.0

    def forward(self, *inputs):
        return self.function(self, *inputs)


def by_tolist(m, x):
    kept = torch.tensor([[one > 0 for one in row] for row in x.tolist()], device=x.device)
    return m.f(x) * kept


def by_lengths(m, x):
    lengths = (x[:, 0] * 0 + 1).long().tolist()
    return torch.stack([one.sum(0) for one in m.f(x).split(lengths)])


def by_numpy(m, x):
    grid = np.mgrid[0:8, 0:8][0]
    return m.f(x) + torch.from_numpy(grid).to(x.device).float()[0]


def quantized(m, x):
    return torch.fake_quantize_per_tensor_affine(m.f(x), 0.1, 0, 0, 255)


BREAKS = {by_tolist: "on the device", by_numpy: "in torch", quantized: "dynamic=False"}


@pytest.mark.parametrize("function", BREAKS, ids=lambda one: one.__name__)
def test_what_ends_a_break_fits_what_the_line_does(function):
    torch._dynamo.reset()  # forgets sizes that another test has seen vary
    found = faults(find(*evidence(lambda: (Of(function), torch.randn(4, 8)))))
    (change,) = [one.change for one in found if one.kind == "graph-break"]
    assert BREAKS[function] in change and "shape" not in change
    assert "recompilation" not in {one.kind for one in found}


ORDER = [3, 1, 2, 0, 5, 4, 7, 6]


def picked(m, x, places):
    return m.f(x)[ORDER]


def picked_columns(m, x, places):
    return m.f(x)[:, [4, 2, 0]]


def selected(m, x, places):
    return m.f(x).index_select(0, torch.tensor(ORDER, device=x.device))


def picked_in_layers(m, x, places):
    for _ in range(4):
        x = m.f(x)[torch.tensor(ORDER)]
    return x


def summed_in_a_loop(m, x, places):
    y, made = m.f(x), torch.zeros_like(x)
    for i, j in enumerate(ORDER):
        made.index_add_(0, torch.tensor([j], device=x.device), y[i : i + 1])
    return made


def picked_by_numbers(m, x, places):
    chosen = x[:, 0].argsort().tolist()
    return m.f(x)[chosen]


def picked_as_told(m, x, places):
    return m.f(x)[places]


def selected_as_told(m, x, places):
    return m.f(x).index_select(0, torch.tensor(places, device=x.device))


LISTS = dict.fromkeys((picked, picked_columns, selected, picked_in_layers), BUFFER)
LISTS |= {
    summed_in_a_loop: "one index_add, with all places in one index tensor, a buffer",
    picked_by_numbers: "compute it on the device",
    picked_as_told: "give forward the tensor",
    selected_as_told: "give forward the tensor",
}


def test_numbers_that_cut_a_tensor_are_answered_by_a_mask():
    found = faults(find(*evidence(lambda: (Of(by_lengths), torch.randn(8, 8)), sizes=False)))
    assert ["mask" in one.change for one in found if one.kind == "graph-break"] == [True]


@pytest.mark.parametrize("function", LISTS, ids=lambda one: one.__name__)
def test_a_list_of_places_has_one_finding_that_says_where_to_make_its_tensor(function):
    found = faults(find(*evidence(lambda: (Of(function), torch.randn(8, 8), [6, 2, 1]), sizes=False)))
    (one,) = [one for one in found if one.kind not in ("sync", "graph-break")]
    assert LISTS[function] in one.change and one.line.function == function.__name__


def by_logarithm(m, x):
    return torch.logsumexp(m.f(x), 0) - math.log(x.shape[0])


def by_loop(m, x):
    return torch.stack([m.f(x[i]).tanh() for i in range(x.shape[0])])


def by_comparison(m, x):
    return m.f(x) if x.shape[0] > 3 else x


def by_counts(m, x):
    m.count += 1
    m.rate = m.rate * 0.5
    return m.f(x) * m.count * m.rate


def by_capacity(m, x):
    room = math.ceil(1.5 * x.shape[0] / 2)
    return m.f(x) + F.one_hot(x[:, 0].argsort().clamp(max=room - 1), room).sum()


AGAIN = {
    by_logarithm: ("dimension 0 of inputs: 8, then 7", "torch.full((), size"),
    by_loop: ("dimension 0 of inputs: 8, then 7", "compile the step alone"),
    by_counts: ("self.count == ", "in a tensor"),
    by_capacity: ("size()[0]", "torch.arange"),
}


@pytest.mark.parametrize("function", AGAIN, ids=lambda one: one.__name__)
def test_a_recompilation_names_what_changed_and_what_ends_it_once(function):
    found = faults(find(*evidence(lambda: (Of(function), torch.randn(8, 8)))))
    (one,) = [one for one in found if one.kind == "recompilation"]
    changed, change = AGAIN[function]
    assert changed in one.evidence and change in one.change


def test_a_size_that_may_be_compared_is_no_recompilation():
    found = find(*evidence(lambda: (Of(by_comparison), torch.randn(8, 8))))
    assert "recompilation" not in {one.kind for one in found}


def by_grid(m, x):
    rows, columns = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
    return m.f(x) + torch.stack([rows, columns], -1).sum(-1).to(x.device)


def by_angles(m, x):
    rates = torch.as_tensor(np.geomspace(1, 1e-4, 8)).to(x.device)
    return m.f(x) + rates.float()


@pytest.mark.parametrize(("function", "narrow"), [(by_grid, False), (by_angles, True)])
def test_a_constant_of_several_steps_on_the_host_is_found_and_made_narrow_where_it_is_wide(function, narrow):
    found = faults(find(*evidence(lambda: (Of(function), torch.randn(8, 8)), sizes=False)))
    changes = [one.change for one in found if one.kind == "cuda-graph"]
    assert changes and all(BUFFER in change and ("float32" in change) is narrow for change in changes)


def causal_where_long(m, x):
    y = m.f(x)[:, None]
    return F.scaled_dot_product_attention(y, y, y, is_causal=x.shape[1] > 1)


def test_a_symbolic_flag_is_told_as_one():
    torch._dynamo.reset()
    found = faults(find(*evidence(lambda: (Of(causal_where_long), torch.randn(4, 16, 8)))))
    (one,) = [one for one in found if one.kind == "graph-break"]
    assert one.evidence == "Dynamo: argument 'is_causal' must be bool, not SymBool"
    assert "is_causal a bool that the caller computes outside" in one.change and "dynamic=False" not in one.change


def looped(x):
    for number in x.tolist():
        x = x + number
    return x


def listed(x):
    return [one + 1 for one in x.tolist()]


def straight(x):
    return x.tolist()


@pytest.mark.parametrize(("function", "inside"), [(looped, True), (listed, True), (straight, False)])
def test_a_function_that_runs_uncompiled_is_explained_by_a_loop_where_there_is_one(function, inside):
    lines, first = inspect.getsourcelines(function)
    at = next(number for number, text in enumerate(lines, first) if "tolist" in text)
    known = Captured(breaks=[Break(Line(__file__, at, function.__name__), "Data dependent operator", skipped=True)])
    (found,) = graph_breaks(evidence(lambda: (nn.Linear(8, 8), torch.randn(4, 8)), sizes=False)[0], known)
    assert "uncompiled" in found.title and ("stands in a loop" in found.title) is inside


def aligned(m, x, targets):
    logits = m.f(x).log_softmax(-1)
    lengths = torch.full((x.shape[1],), x.shape[0])
    return F.ctc_loss(logits, targets, lengths, torch.full_like(lengths, 3))


def solved(m, x):
    return torch.linalg.lstsq(x, m.f(x)).solution


def positive(m, x):
    return m.f(x)[x[:, 0] > 0].sum()


def places(m, x):
    return m.f(x).index_select(0, x[:, 0].nonzero()[:, 0])


@pytest.mark.parametrize(
    ("function", "inputs"),
    [(aligned, (torch.randn(12, 2, 8), torch.randint(1, 8, (2, 3)))), (solved, (torch.randn(16, 8),))],
    ids=["ctc", "lstsq"],
)
def test_an_operator_whose_sizes_depend_on_values_stays_outside(function, inputs):
    found = find(*evidence(lambda: (Of(function), *inputs), sizes=False))
    (one,) = [each for each in found if each.kind == "graph-break"]
    assert one.weight == "finding" and "torch.compiler.disable" in one.change and "keep all rows" not in one.change
    module = Of(function)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), pytest.raises(Unsupported, match="meta"):
        torch.compile(module, backend="eager", fullgraph=True)(*inputs)

    def disabled(m, *given):
        return torch.compiler.disable(function)(m, *given)

    outside = torch.compile(Of(disabled).eval(), backend="eager")
    outside.load_state_dict({f"_orig_mod.{name}": one for name, one in module.state_dict().items()})
    torch.testing.assert_close(outside(*inputs), module(*inputs))


@pytest.mark.parametrize("function", [positive, places], ids=lambda one: one.__name__)
def test_rows_that_the_author_selects_can_be_masked(function):
    for one in find(*evidence(lambda: (Of(function), torch.randn(16, 8)), sizes=False)):
        assert "torch.compiler.disable" not in one.change

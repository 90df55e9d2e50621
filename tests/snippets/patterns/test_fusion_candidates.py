"""The tool finds what one kernel could compute, counts its bytes as by hand, and proposes nothing that cannot be."""

import torch
import torch.nn.functional as F
from torch import nn

from snippets.patterns import fusion_candidates
from snippets.patterns.fusion_candidates import find, operations, report

T = 256 * 1024 * 4  # bytes of one tensor below


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, function, **layers):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def found(function, *inputs, **layers):
    """(how, names of operations, tensors before, tensors after) of all that is found."""
    model = Of(function, **layers)
    _, every = find(model, *(inputs or (torch.empty(256, 1024),)))
    return [(one.how, [operation.name for operation in one.operations], one.before / T, one.after / T) for one in every]


def test_a_chain_is_one_kernel_and_its_bytes_are_those_of_its_ends():
    assert found(lambda m, x: torch.sin(x).exp().neg()) == [("vertical", ["sin", "exp", "neg"], 6, 2)]


def test_a_result_that_somebody_else_needs_is_still_written():
    def function(m, x):
        hidden = torch.sin(x)
        return hidden.exp(), hidden

    assert found(function) == [("vertical", ["sin", "exp"], 4, 3)]


def test_views_are_no_operations_and_pass_a_tensor_on():
    assert found(lambda m, x: torch.sin(x).t().unflatten(0, (4, -1)).exp()) == [("vertical", ["sin", "exp"], 4, 2)]


def test_in_place_moves_as_much():
    assert found(lambda m, x: torch.sin(x).exp_()) == [("vertical", ["sin", "exp"], 4, 2)]


def test_a_reduction_along_rows_is_part_of_it_and_one_over_everything_begins_anew():
    (chain,) = found(lambda m, x: torch.sin(F.softmax(x * 2, -1)))
    assert chain[:2] == ("vertical", ["mul", "_softmax", "sin"])
    norm = nn.BatchNorm1d(1024)
    (chain,) = found(lambda m, x: torch.sin(m.norm(x * 2)), norm=norm)
    assert chain[:2] == ("vertical", ["native_batch_norm", "sin"])


def test_a_batch_norm_in_inference_is_elementwise():
    model = Of(lambda m, x: torch.sin(m.norm(x * 2)), norm=nn.BatchNorm1d(1024)).eval()
    _, (chain,) = find(model, torch.empty(256, 1024))
    assert [one.name for one in chain.operations] == ["mul", "native_batch_norm", "sin"]


def test_readers_of_one_tensor_read_it_once():
    assert found(lambda m, x: (torch.sin(x), torch.exp(x))) == [("horizontal", ["sin", "exp"], 4, 3)]


def test_the_epilogue_of_a_product():
    layer = nn.Linear(1024, 1024, bias=False)
    assert [one[:2] for one in found(lambda m, x: torch.sin(m.layer(x)), layer=layer)] == [("epilogue", ["mm", "sin"])]


def test_products_of_one_input_are_one_product_and_products_of_one_weight_are_not():
    layers = {name: nn.Linear(1024, 1024) for name in "qk"}
    assert [one[:2] for one in found(lambda m, x: (m.q(x), m.k(x)), **layers)] == [("one product", ["addmm", "addmm"])]
    inputs = torch.empty(256, 1024), torch.empty(256, 1024)
    assert found(lambda m, x, y: (m.q(x), m.q(y)), *inputs, q=nn.Linear(1024, 1024)) == []


def test_nothing_is_proposed_that_would_wait_for_itself():
    """The addition needs the first result and the product of it: the product would run in the middle of the kernel."""

    def function(m, x):
        hidden = torch.sin(x)
        return m.layer(hidden) + hidden

    layer = nn.Linear(1024, 1024, bias=False)
    ways = found(function, layer=layer)
    assert [one[:2] for one in ways] == [("epilogue", ["mm", "add"])]


def test_the_model_is_not_touched():
    model = Of(lambda m, x: m.norm(x), norm=nn.BatchNorm1d(1024))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    operations(model, torch.randn(256, 1024))
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_vertical_fusions_have_nothing_in_common_and_the_report_sums_them():
    every, ways = find(Of(lambda m, x: (torch.sin(x).exp(), torch.cos(x).neg())), torch.empty(256, 1024))
    text = report((every, ways))
    assert "all operations                     4     8.4 MB" in text
    assert "with every vertical fusion         2     4.2 MB" in text


def test_the_script_runs(script):
    assert "epilogue" in script(fusion_candidates.__name__).stdout

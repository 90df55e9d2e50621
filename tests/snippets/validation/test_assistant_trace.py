"""The trace: calls by their lines, loops, what runs and what is kept."""

import pytest
import torch
from torch import nn

from snippets.validation.assistant import traced
from snippets.validation.assistant_trace import kind_of_mask, name_of
from tests.snippets.validation.planted import kernels, memory
from tests.snippets.validation.planted.seen import made

pytestmark = pytest.mark.usefixtures("one_core")


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.Tensor.__matmul__, "matmul"),
        (torch.mm, "matmul"),
        (torch.Tensor.add_, "add"),
        (torch.Tensor.__rsub__, "rsub"),
        (torch.nn.functional.softmax, "softmax"),
        (torch.Tensor.bool, "bool"),
        (torch.Tensor.__bool__, "__bool__"),
        (torch.Tensor.T.__get__, "T"),
    ],
)
def test_a_function_has_one_name_however_it_is_spelt(function, name):
    assert name_of(function) == name


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 32, bias=False)

    def forward(self, x):
        y = self.fc(x)
        return torch.relu(y).T


def test_a_line_has_its_kernels_bytes_and_work():
    trace = traced(made(lambda: (Two(), torch.randn(16, 64))))
    linear, relu, turned = trace.calls
    assert [call.line.text for call in trace.calls] == [
        "y = self.fc(x)",
        "return torch.relu(y).T",
        "return torch.relu(y).T",
    ]
    assert linear.flops == 2 * 16 * 64 * 32 and linear.moved == 4 * (16 * 64 + 64 * 32 + 16 * 32)
    assert (relu.kernels, relu.moved, turned.kernels) == (1, 2 * 4 * 16 * 32, 0)
    assert sum(op.flops for op in linear.backward) == 2 * 16 * 64 * 32
    assert [(kept.line.text, kept.bytes) for kept in trace.saved] == [("return torch.relu(y).T", 4 * 16 * 32)]


def test_what_is_freed_is_not_at_the_peak():
    class Long(nn.Module):
        def forward(self, x):
            for _ in range(10):
                x = x + 1
            return x

    trace = traced(made(lambda: (Long(), torch.randn(1024))))
    assert trace.peak == 2 * 4 * 1024


def test_turns_of_a_loop_are_counted_and_layers_are_not_mixed_with_them():
    trace = traced(made(lambda: (kernels.StepByStep(), kernels.sequence())))
    turns = {line.text: max(map(len, groups)) for (line, _), groups in trace.loops.items()}
    assert turns["h = self.cell(x[:, t], h)  # fault: small-kernels"] == 16


def test_a_result_that_the_module_stores_with_its_graph_is_found_at_the_line():
    held = traced(made(lambda: (memory.KeepsHistory(), torch.randn(4, 64)))).held
    assert [line.text for line in held] == ["self.history.append(h)  # fault: kept-graph"]


@pytest.mark.parametrize(
    ("mask", "kind"),
    [
        (torch.ones(4, 4, dtype=torch.bool).tril(), "causal"),
        (torch.full((4, 4), float("-inf")).triu(1), "causal"),
        (torch.full((4, 4), torch.finfo(torch.float32).min).triu(1).expand(2, 1, 4, 4), "causal"),
        (torch.ones(4, 4, dtype=torch.bool), "nothing"),
        (torch.randn(4, 4), "data"),
        (torch.ones(2, 4, dtype=torch.bool).tril(), "data"),
    ],
)
def test_what_a_mask_says(mask, kind):
    assert kind_of_mask(mask) == kind

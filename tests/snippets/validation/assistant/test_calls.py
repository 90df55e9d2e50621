"""Calls: each with its line, its kernels, its bytes and its work."""

import pytest
import torch
from torch import nn

from snippets.validation.assistant.calls import is_ordered, kind_of_mask
from snippets.validation.assistant.trace import traced
from tests.snippets.validation.planted.seen import made

pytestmark = pytest.mark.usefixtures("one_core")


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


@pytest.mark.parametrize(
    ("edges", "ordered"),
    [
        (torch.tensor([1.0, 2.0, 2.0]), True),
        (torch.tensor([1.0, 3.0, 2.0]), False),
        (torch.tensor([3, 2, 1], dtype=torch.uint8), False),
        (torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn), False),
    ],
    ids=("ordered", "mixed", "bytes", "float8"),
)
def test_whether_edges_are_in_order(edges, ordered):
    assert is_ordered(edges) == ordered


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.float8_e4m3fn], ids=str)
def test_what_pytorch_does_not_subtract_is_recorded(dtype):
    class Same(nn.Module):
        def forward(self, x):
            y = x.to(dtype)
            return y == y

    trace = traced(made(lambda: (Same(), torch.ones(16))))
    assert [call.name for call in trace.calls] == ["to", "eq"] and not trace.skipped

"""Calls: each with its line, its kernels, its bytes and its work."""

import pytest
import torch
from torch import nn

from snippets.validation.assistant.calls import kind_of_mask
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

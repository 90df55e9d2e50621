"""Capture: breaks, recompilations and masks with their lines, and nothing left behind."""

import pytest
import torch
from torch import nn

from snippets.validation.assistant import analyze
from snippets.validation.assistant.graphs import Recompiled, capture, unexpected
from snippets.validation.assistant.lines import Line
from snippets.validation.assistant.subject import other_sizes
from tests.snippets.validation.planted import kernels, readiness
from tests.snippets.validation.planted.seen import made

pytestmark = pytest.mark.usefixtures("one_core")


def test_what_the_caller_compiled_stays_compiled():
    module, compiled = readiness.MLP(), []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    fast, x = torch.compile(module, backend=backend), torch.randn(4, 64)
    fast(x)
    analyze(module, x)
    fast(x)
    assert len(compiled) == 1


class Special(nn.Module):
    """Takes another way for one size of the batch."""

    def forward(self, x):
        if x.shape[0] == 7:
            return x.sin()
        return x.cos()


def test_the_line_that_makes_a_size_a_constant_is_named():
    subject = made(lambda: (Special(), torch.randn(8, 8)))
    found = capture(subject, other_sizes(subject)).recompiled
    assert [(one.line.text, one.reason) for one in found] == [
        ("if x.shape[0] == 7:", "makes a constant of size 7 at index 0")
    ]


def test_one_more_graph_for_a_size_that_changes_is_expected():
    line = Line("model.py", 1)
    size = [Recompiled(line, "tensor 'x' size mismatch at index 0. expected 4, actual 9", by_size=True)]
    assert unexpected(size, changed=True) == [] and unexpected(size, changed=False) == size


def test_masks_of_the_captured_graph_are_looked_at():
    kinds = {}
    for module in (kernels.MaskAsData(), kernels.WindowedAttention()):
        captured = capture(made(lambda module=module: (module, kernels.sequence())))
        kinds[type(module).__name__] = {mask.kind for mask in captured.masks}
    assert kinds == {"MaskAsData": {"causal"}, "WindowedAttention": {"data"}}

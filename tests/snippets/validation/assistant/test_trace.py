"""The trace: calls by their lines, loops, what runs and what is kept."""

import pytest
import torch
from torch import nn

from snippets.validation.assistant.trace import traced
from tests.snippets.validation.planted import kernels
from tests.snippets.validation.planted.seen import made

pytestmark = pytest.mark.usefixtures("one_core")


def test_what_is_freed_is_not_at_the_peak():
    class Long(nn.Module):
        def forward(self, x):
            for _ in range(10):
                x = x + 1
            return x

    trace = traced(made(lambda: (Long(), torch.randn(1024))))
    assert trace.peak == pytest.approx(2 * 4 * 1024, rel=0.01)  # the loss is a few bytes


def test_turns_of_a_loop_are_counted_and_layers_are_not_mixed_with_them():
    trace = traced(made(lambda: (kernels.StepByStep(), kernels.sequence())))
    turns = {line.text: max(map(len, groups)) for (line, _), groups in trace.loops.items()}
    assert turns["h = self.cell(x[:, t], h)  # fault: small-kernels"] == 16


class Summed(nn.Module):
    """A loop in a generator: between its turns the sum runs, which is no call of the generator."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return sum(self.fc(one).relu() for one in x)


def test_turns_of_a_generator_are_a_loop():
    trace = traced(made(lambda: (Summed(), torch.randn(12, 4, 8))))
    (turns,) = {max(map(len, groups)) for (line, _), groups in trace.loops.items() if "sum(" in line.text}
    assert turns == 12 and len({call.where[-1][0] for call in trace.calls if call.name == "relu"}) == 1

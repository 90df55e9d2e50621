"""Loops of small kernels: which are the same, and which write apart."""

import pytest
import torch
from torch import nn

from snippets.validation.assistant.found import find
from tests.snippets.validation.planted.seen import evidence

pytestmark = pytest.mark.usefixtures("one_core")


class Twice(nn.Module):
    """A loop that is run twice, by two calls on one line, and a third one."""

    def through(self, x):
        return torch.stack([one.softmax(-1).sum(0) for one in x])

    def forward(self, x):
        return self.through(self.through(x)[..., None]) + torch.stack([one.sin().sum(-1).mean(-1) for one in x])


def test_a_loop_that_runs_twice_is_found_two_times_and_another_is_another():
    found = find(*evidence(lambda: (Twice(), torch.randn(16, 4, 8)), sizes=False))
    assert sorted(one.times for one in found if one.kind == "small-kernels") == [1, 2]

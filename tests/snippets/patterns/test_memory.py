"""Growing a tensor moves all that is there at each step, and the script shows all."""

import pytest
import torch

from snippets.patterns import memory
from snippets.patterns.memory_moved import passes


def test_appending_by_cat_moves_all_that_is_there_at_each_step():
    steps = torch.randn(16, 8)
    for function in (memory.growing, memory.listed, memory.in_room):
        assert torch.equal(function(steps), steps)
    assert passes(memory.growing, steps) == pytest.approx(2 * sum(range(1, 17)) / 16)
    assert passes(memory.listed, steps) == passes(memory.in_room, steps) == 2.0


def test_the_script_shows_all(script):
    done = script("snippets.patterns.memory")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("====") == 8

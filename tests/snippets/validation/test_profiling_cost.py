"""What the profiler costs, measured and printed."""

import re

import pytest

from snippets.validation import profiling_cost
from snippets.validation.profiling_cost import OPTIONS, cost, costs, seconds
from snippets.validation.profiling_training import Training

pytestmark = pytest.mark.usefixtures("one_core")


def test_each_step_is_called_as_often_as_asked():
    calls = []
    assert seconds(lambda: calls.append("step"), 5, after_each=lambda: calls.append("after")) > 0
    assert calls == ["step", "after"] * 5


def test_what_is_recorded_besides_makes_the_trace_larger():
    step = Training(16, 4)
    sizes = [cost(step, steps=3, **options)[2] for options in ({}, {"record_shapes": True}, {"with_stack": True})]
    assert sizes == sorted(sizes) and sizes[0] > 0


def test_a_line_for_each_option(monkeypatch):
    monkeypatch.setattr(profiling_cost, "cost", lambda step, steps, **options: (2.0, 0.5, 0.25 * steps))
    monkeypatch.setattr(profiling_cost, "seconds", lambda step, steps: steps * 1e-3)
    head, alone, *rows = costs(Training(16, 4), 4)
    assert re.split(" {2,}", alone) == ["no profiler", "1.000 ms"]
    assert [re.split(" {2,}", row) for row in rows] == [
        [name, "2.000 ms", "2.00 x", "0.50 s", "0.250 MB"] for name in OPTIONS
    ]
    assert head.split("  ")[-1].strip() == "trace of a step"

"""The five forms of a step compute the same; and what is printed of them."""

import re
from types import SimpleNamespace

import pytest
import torch

from snippets.validation import profiling_programs as programs
from snippets.validation.profiling import Event
from snippets.validation.profiling_programs import (
    Training,
    compiled,
    cost,
    costs,
    launch_lengths,
    lengths,
    names_inside,
    seconds,
)

VARIES = {"eager": r"ProfilerStep#\d+|\n  .*"}  # rows in the order of their times: see tests/benchmarks/captures.py


@pytest.fixture(autouse=True)
def few(one_core):
    """Tiny layers."""


def test_a_step_trains_and_each_form_alike():
    found = []
    for kwargs in ({}, {"compiled": compiled}, {"look": True}):
        torch.manual_seed(0)
        step = Training(16, 4, **kwargs)
        before = step.loss_of(step.x).item()
        for _ in range(20):
            step()
        found.append(step.loss_of(step.x).item())
        assert found[-1] < before
        assert (step.seen > 0) == step.look
    assert found[1:] == pytest.approx(found[:1] * 2, rel=0.05 if programs.ON_GPU else 1e-3)  # bf16 there


def test_names_inside_a_compiled_function_are_lost():
    assert names_inside(lambda function: function) == ["first half", "second half"]
    assert names_inside(lambda function: torch.compile(function, backend="aot_eager")) == []


def test_launches_are_told_apart_by_their_place():
    """A stand-in for a step: the first thousand launches are short, the others have to wait."""
    launches = [(Event("cudaLaunchKernel", "cuda_runtime", 0, 3 if n < 1000 else 30), []) for n in range(1500)]
    lines = list(launch_lengths(SimpleNamespace(launches=lambda: launches)))
    assert [line.split("median")[1].split() for line in lines] == [["3.0", "us"], ["3.0", "us"], ["30.0", "us"]]
    assert lines[-1].startswith("launches 1001 to 1500:")


def test_as_many_lengths_as_steps():
    assert len(lengths(lambda: torch.ones(8).add(1), warm_up=1)) == 4


def test_each_step_is_called_as_often_as_asked():
    calls = []
    assert seconds(lambda: calls.append("step"), 5, after_each=lambda: calls.append("after")) > 0
    assert calls == ["step", "after"] * 5


def test_what_is_recorded_besides_makes_the_trace_larger():
    step = Training(16, 4)
    sizes = [cost(step, steps=3, **options)[2] for options in ({}, {"record_shapes": True}, {"with_stack": True})]
    assert sizes == sorted(sizes) and sizes[0] > 0


def test_a_line_for_each_option(monkeypatch):
    monkeypatch.setattr(programs, "cost", lambda step, steps, **options: (2.0, 0.5, 0.25 * steps))
    monkeypatch.setattr(programs, "seconds", lambda step, steps: steps * 1e-3)
    head, alone, *rows = costs(Training(16, 4), 4)
    assert re.split(" {2,}", alone) == ["no profiler", "1.000 ms"]
    assert [re.split(" {2,}", row) for row in rows] == [
        [name, "2.000 ms", "2.00 x", "0.50 s", "0.250 MB"] for name in programs.OPTIONS
    ]
    assert head.split("  ")[-1].strip() == "trace of a step"

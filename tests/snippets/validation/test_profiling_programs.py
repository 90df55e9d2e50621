"""What is printed of the recorded steps."""

from types import SimpleNamespace

import pytest
import torch

from snippets.validation.profiling import Event
from snippets.validation.profiling_programs import launch_lengths, lengths, names_inside

VARIES = {"eager": r"ProfilerStep#\d+|\n  .*"}  # rows in the order of their times: see tests/benchmarks/captures.py


@pytest.fixture(autouse=True)
def few(one_core):
    """Tiny layers."""


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

"""Three counts tell slow functions apart."""

import pytest
import torch
from torch.compiler import set_stance as stance

from snippets.compiler.debugging_slow import broken, one_graph, step_by_name, vitals


def test_slow_functions_are_told_apart_by_three_counts():
    x = torch.ones(4)
    steps = [(x, i) for i in range(3)]
    assert vitals(one_graph, *steps) == "1 graphs; 1 of 3 batches had to be compiled; 1 graphs a call"
    assert vitals(broken, *steps) == "2 graphs; 1 of 3 batches had to be compiled; 2 graphs a call"
    named = [(x, "x" * i) for i in range(3)]
    assert vitals(step_by_name, *named) == "3 graphs; 3 of 3 batches had to be compiled; 1 graphs a call"


@pytest.mark.parametrize("off", [lambda: torch._dynamo.config.patch(disable=True), lambda: stance("force_eager")])
def test_the_compiler_can_be_switched_off(off):
    """The first is what TORCH_COMPILE_DISABLE=1 sets."""
    with off():
        assert vitals(one_graph, (torch.ones(4), 0)).startswith("0 graphs")
    assert vitals(one_graph, (torch.ones(4), 0)).startswith("1 graphs")

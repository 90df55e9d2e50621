"""A loop over unbind is the same, and keeps its gradients small."""

import torch

from snippets.patterns import linear_batched
from snippets.patterns.compare_levels import compare
from tests.snippets.patterns.components import DEVICE


def test_a_loop_over_unbind_is_the_same_and_keeps_its_gradients_small() -> None:
    inputs = linear_batched.batched_inputs((4, 16, 64), torch.float32, DEVICE)
    functions = {"index": linear_batched.batched_written, "unbind": linear_batched.batched_unbound}
    assert compare(functions, inputs, ("x", "weight"), rounds=0).agree
    assert "SelectBackward0" in graph_of(linear_batched.batched_written, inputs)
    assert "SelectBackward0" not in graph_of(linear_batched.batched_unbound, inputs)


def graph_of(function, inputs: dict[str, torch.Tensor]) -> set[str]:
    """The names of all functions of the backward."""
    waiting = [function(*(t.requires_grad_() for t in inputs.values())).grad_fn]
    found = set()
    while waiting:
        if (node := waiting.pop()) is not None:
            found.add(node.name())
            waiting += [before for before, _ in node.next_functions]
    return found

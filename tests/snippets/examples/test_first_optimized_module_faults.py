"""Each fault is one, and no more."""

import torch

from snippets.examples.first_optimized_module_draft import make_draft, make_input
from snippets.examples.first_optimized_module_faults import faults
from snippets.examples.first_optimized_module_solutions import judge


def test_each_fault_is_a_fault_and_no_more():
    draft, x = make_draft(), make_input(8)
    right = draft(x)
    for name, candidate in faults(draft).items():
        result = candidate(x.clone())
        if name == "its first result for ever":  # right for once
            assert torch.equal(result, right)
            assert not torch.equal(candidate(other := make_input(8)), draft(other))
        elif name != "result in float64":
            assert not torch.equal(result, right), name
    assert judge(draft, draft, [x])

"""Programs differ in what their names say."""

import torch

from snippets.compiler.costs_calls import BREAKS, GUARDED, Configured, add_one, broken, difference, whole


def graphs_of(function, *inputs: torch.Tensor) -> int:
    torch.compiler.reset()
    return torch._dynamo.explain(function)(*inputs).graph_count


def test_programs_differ_in_what_their_names_say():
    x = torch.randn(8)
    assert [graphs_of(function, x) for function in (whole, broken)] == [1, BREAKS + 1]
    assert torch.equal(whole(x), broken(x))
    torch.compiler.reset()
    guards = []
    for count in (1, GUARDED + 1):
        explained = torch._dynamo.explain(Configured(count).__call__)(x)
        guards.append(len(explained.out_guards))
    assert guards[1] - guards[0] >= GUARDED
    assert torch.equal(add_one(x), x + 1)


def test_a_difference_is_shared_by_what_causes_it():
    assert difference([3.0, 5.0], [1.0, 1.0], 2) == [1.0, 2.0]

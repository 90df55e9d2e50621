"""What working in place moves, what autograd refuses, and what it does not."""

import pytest
import torch

from snippets.patterns import memory_in_place
from snippets.patterns.memory_moved import passes


def test_in_place_moves_as_much_and_compiled_it_is_the_same_kernel():
    x = torch.randn(64, 64)
    assert torch.equal(memory_in_place.apart(x), memory_in_place.in_place(x))
    assert passes(memory_in_place.apart, x) == passes(memory_in_place.in_place, x) == 6.0
    apart, in_place = memory_in_place.compiled().values()
    assert [launch.bytes for launch in apart] == [launch.bytes for launch in in_place]
    assert len(apart) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (memory_in_place.saved_output, "has been modified by an inplace operation"),
        (memory_in_place.leaf, "a leaf Variable that requires grad"),
        (memory_in_place.expanded, "more than one element of the written-to tensor"),
        (memory_in_place.one_of_several, "is a view and is being modified inplace"),
        (memory_in_place.on_the_way_to_a_gradient, "has been modified by an inplace operation"),
    ],
)
def test_what_autograd_refuses(change, says: str):
    assert change in memory_in_place.REFUSED
    assert says in memory_in_place.refusal(change)


def test_what_nothing_refuses():
    x = torch.zeros(2, 3, requires_grad=True)
    assert memory_in_place.by_data(x) == 2.0, "the gradient of exp at 0 is 1"
    assert memory_in_place.of_the_callers_tensor(x) == 5.0, "and the caller's tensor held 0"
    assert memory_in_place.refusal(lambda x: None) == "nothing"

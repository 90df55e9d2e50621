"""The fix of a number that compiles again computes what the code before it computed."""

import torch

from snippets.compiler import recompilation_state
from snippets.compiler.recompilation_state import Given, Layer, cooled, global_before, shifted


def test_a_layer_that_is_given_its_part_computes_the_same():
    cache = [torch.full((4,), float(index)) for index in range(4)]
    x = torch.ones(4)
    for index in range(4):
        assert torch.equal(Given()(x, cache[index]), Layer(index)(x, cache))


def test_a_loop_that_adds_is_one_addition():
    assert torch.equal(shifted(torch.ones(4), 3), torch.ones(4) + 3)


def test_the_global_is_read_in_each_call():
    global_before(lambda function: function)
    assert torch.equal(cooled(torch.ones(4)), torch.ones(4) / 10)
    assert recompilation_state.temperature == 10

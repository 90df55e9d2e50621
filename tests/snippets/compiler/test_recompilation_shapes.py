"""A marked size, and a first size of 1."""

import re

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from snippets.compiler.recompilation_counter import Counter
from snippets.compiler.recompilation_specialised import double

TORCH = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))


def test_a_mark_on_the_first_call_is_enough_and_a_size_of_one_is_refused():
    counter = Counter()
    torch.compiler.reset()
    compiled = torch.compile(double, backend=counter)
    for length in (5, 6, 7, 1024):
        x = torch.ones(length)
        if length == 5:
            torch._dynamo.mark_dynamic(x, 0, min=2, max=1024)
        compiled(x)
    assert counter.compiled == 1
    one = torch.ones(1)
    torch._dynamo.mark_dynamic(one, 0, min=2, max=1024)
    with pytest.raises(
        ConstraintViolationError, match=r"marked .* as dynamic but your code specialized it to be a constant"
    ):
        compiled(one)


@pytest.mark.skipif(TORCH > (2, 13), reason="a first size of 1 may have become a symbol")
def test_dynamic_true_does_not_make_a_symbol_of_a_first_size_of_1():
    for sizes, graphs in (((8, 5, 2), 1), ((1, 2, 5), 2)):
        counter = Counter()
        torch.compiler.reset()
        compiled = torch.compile(double, backend=counter, dynamic=True)
        for size in sizes:
            compiled(torch.ones(size))
        assert counter.compiled == graphs

"""What marks on a size promise, and what is refused."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from snippets.compiler.recompilation_marks import attend, attend_checked, of_marked, of_unbacked

TORCH = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))


def test_a_mark_is_a_promise_and_a_perhaps_is_not():
    assert of_marked(torch._dynamo.mark_dynamic) == (
        "You marked L['x'].size()[0] as dynamic but your code specialized it to be a constant (5)"
    )
    assert of_marked(torch._dynamo.maybe_mark_dynamic).startswith("one graph")


def test_attention_needs_to_know_that_an_unbacked_length_is_not_0():
    asks = "Could not guard on data-dependent expression Eq(u"
    assert of_unbacked(attend).startswith(asks if TORCH < (2, 15) else "one graph")
    assert of_unbacked(attend_checked) == "one graph"


@pytest.mark.parametrize("way", (lambda x: x.double(), lambda x: x[:], lambda x: x), ids=("to", "slice", "itself"))
def test_a_mark_stays_with_its_tensor(way: Callable[[Tensor], Tensor]):
    torch.compiler.reset()
    counter = CompileCounter()
    compiled = torch.compile(torch.sin, backend=counter)
    for length in (5, 6):
        x = torch.ones(length)
        torch._dynamo.mark_dynamic(x, 0)
        given = way(x)
        compiled(given)
    assert counter.frame_count == (1 if given is x else 2)

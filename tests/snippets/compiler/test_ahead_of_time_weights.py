"""Which weights are so small that they are compiled into the code."""

import pytest
import torch
from torch._inductor.graph import GraphLowering


@pytest.mark.parametrize(("shape", "baked"), [((8,), True), ((9,), False), ((2, 2), False)])
def test_what_is_small(shape, baked):
    assert GraphLowering.can_inline_constant(torch.ones(shape)) == baked

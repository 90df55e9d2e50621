"""A view moves nothing, and what is overwritten is not read."""

import torch

from snippets.patterns.memory_moved import moved, passes


def test_what_is_overwritten_is_not_read():
    x, y = torch.randn(2, 8, 8)
    assert passes(lambda x: y.copy_(x), x) == 2.0
    assert passes(lambda x: x.add_(1), x) == 2.0
    assert passes(lambda x: x.add_(y), x) == 3.0
    assert not moved(torch.empty_like, x)

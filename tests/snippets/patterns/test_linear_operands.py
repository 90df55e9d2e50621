"""Layouts and sizes hold the same numbers."""

import torch

from snippets.patterns import linear_operands


def test_layouts_hold_the_same_numbers_and_are_stored_as_their_names_say() -> None:
    x, weight = torch.randn(6, 8), torch.randn(4, 8)
    stored = linear_operands.layouts(x, weight)
    for name, (one, other) in stored.items():
        assert torch.equal(one, x), name
        assert torch.equal(other, weight), name
    strides = {name: (one.stride(), other.stride()) for name, (one, other) in stored.items()}
    assert strides == {
        "rows-rows": ((8, 1), (8, 1)),
        "rows-columns": ((8, 1), (1, 4)),
        "columns-rows": ((1, 6), (8, 1)),
        "columns-columns": ((1, 6), (1, 4)),
        "left-half": ((16, 1), (8, 1)),
        "every-other": ((16, 2), (8, 1)),
    }


def test_a_larger_weight_adds_zeros_only() -> None:
    weight = torch.randn(50, 95)
    wide = linear_operands.larger(weight)
    assert wide.shape == (64, 128)
    assert torch.equal(wide[:50, :95], weight)
    assert wide.count_nonzero() == weight.count_nonzero()
    assert linear_operands.larger(wide).shape == wide.shape

"""Groups of experts are unequal, and a padded batch computes the same."""

import pytest
import torch

from snippets.patterns import linear_experts
from snippets.patterns.compare_levels import compare
from tests.snippets.patterns.components import DEVICE


def test_experts_as_a_padded_batch_are_the_same() -> None:
    inputs = linear_experts.experts_inputs((4, 128, 64, 96), torch.float32, DEVICE)
    functions = {"loop": linear_experts.experts_written, "padded": linear_experts.experts_padded}
    assert compare(functions, inputs, ("x", "weight"), rounds=0).agree


@pytest.mark.parametrize(("experts", "tokens"), [(1, 64), (4, 128), (8, 512), (64, 32768)])
def test_groups_are_unequal_and_begin_at_multiples_of_16(experts: int, tokens: int) -> None:
    sizes = linear_experts.uneven(experts, tokens)
    assert sum(sizes) == tokens
    assert all(size % 16 == 0 for size in sizes)
    assert all(size > 0 for size in sizes)
    assert experts == 1 or max(sizes) > 1.4 * min(sizes)

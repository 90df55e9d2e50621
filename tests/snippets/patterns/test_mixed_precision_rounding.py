"""What rounding loses, and what it does not."""

import pytest
import torch

from snippets.patterns.mixed_precision_rounding import (
    ROUNDED,
    error_of_bf16_sums,
    error_of_sums,
    in_tf32,
    lost_gradients,
    moved,
)


def test_tf32_has_ten_bits_rounded_to_the_nearest_even():
    one = torch.tensor([1.0, 1 + 2**-10, 1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-11 + 2**-20, -(1 + 3 * 2**-11)])
    assert in_tf32(one).tolist() == [1, 1 + 2**-10, 1, 1 + 2**-9, 1 + 2**-10, -(1 + 2**-9)]
    x = torch.randn(10_000)
    assert float((in_tf32(x) / x - 1).abs().max()) <= 2**-11


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_factors_cost_the_same_however_many_terms(name):
    few, many = (error_of_sums(terms, ROUNDED[name]) for terms in (64, 16384))
    assert many == pytest.approx(few, rel=0.15)


def test_sums_in_bf16_get_worse_with_their_length():
    few, many = error_of_bf16_sums(64), error_of_bf16_sums(4096)
    assert many > 4 * few > 8 * error_of_sums(64, ROUNDED["bf16"])


def test_only_fp16_without_a_scale_loses_gradients():
    found = lost_gradients()
    assert found["fp16"] > 0.5 and found["bf16"] == found["fp16, scaled by 65536"] == 0


def test_small_updates_of_bf16_weights_are_rounded_away():
    assert moved(torch.float32, 1e-5) == (0, pytest.approx(1, abs=1e-3))
    still, way = moved(torch.bfloat16, 1e-5)
    assert still > 0.5 and way < 0.3
    still, way = moved(torch.bfloat16, 1e-3)
    assert still < 0.01 and way == pytest.approx(1, abs=0.1)

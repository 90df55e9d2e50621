"""Approximations of GELU are as far off as the page says, and one formula of SiLU has no gradient far below zero."""

import math

import pytest
import torch

from snippets.patterns.activations_mistakes import APPROXIMATIONS, furthest, gradient, quick, silu, silu_by_exp, tanh


@pytest.mark.parametrize(
    ("approximation", "least", "most"), [(tanh, 1e-4, 1e-3), (quick, 0.01, 0.03), (silu, 0.1, 0.3)]
)
def test_how_far_each_is_from_gelu(approximation, least: float, most: float) -> None:
    assert least < furthest(approximation)[0] < most


def test_silu_by_exp_has_the_right_value_and_no_gradient() -> None:
    x = torch.tensor([-100.0, -2.0, 0.0, 30.0])
    torch.testing.assert_close(silu_by_exp(x), silu(x))
    assert math.isnan(gradient(silu_by_exp, -100.0))
    assert gradient(silu, -100.0) == 0
    assert gradient(silu_by_exp, -2.0) == pytest.approx(gradient(silu, -2.0))


def test_the_script_prints_all(script) -> None:
    lines = script("snippets.patterns.activations_mistakes").stdout.splitlines()
    names = [each.__name__ for each in (*APPROXIMATIONS, silu_by_exp, silu)]
    assert [line.split()[0] for line in lines] == names

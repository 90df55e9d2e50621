"""Softmax and losses: every level that runs here agrees with float64, forward and backward, in fp32 and bf16."""

import pytest
import torch

from snippets.patterns.softmax_and_loss import COMPONENTS, MASKED_SOFTMAX
from tests.snippets.patterns.components import DEVICE, problems, reference_is_the_formula, slow_or_other


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("component", COMPONENTS, ids=lambda of: of.name)
def test_all_levels_agree(component, dtype: torch.dtype) -> None:
    left_out = slow_or_other(component, COMPONENTS, dtype)
    found, nothing = problems(component, (24, 256), dtype, left_out)
    assert found == nothing


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda of: of.name)
def test_the_reference_is_the_formula(component) -> None:
    reference_is_the_formula(component, (8, 64), rtol=1e-5, atol=1e-7)  # level 0 computes in fp32 inside


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("level", [1, 3, 4])
def test_what_the_mask_leaves_out_is_zero_with_a_gradient_of_zero(level: int) -> None:
    inputs = MASKED_SOFTMAX.inputs((8, 64), torch.float32, DEVICE)
    x, keep = inputs["x"].requires_grad_(), inputs["keep"]
    y = MASKED_SOFTMAX.levels[level]()(x, keep)
    (gradient,) = torch.autograd.grad(y.square().sum(), x)
    assert not y[~keep].any()
    assert not gradient[~keep].any()
    torch.testing.assert_close(y.sum(-1), torch.ones(8, device=DEVICE))

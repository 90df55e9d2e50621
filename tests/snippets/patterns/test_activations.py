"""Activations: every level that runs here agrees with float64, forward and backward, in fp32 and bf16."""

import pytest
import torch

from snippets.patterns.activations import COMPONENTS
from tests.snippets.patterns.components import DEVICE, problems, reference_is_the_formula, slow_or_other


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("component", COMPONENTS, ids=lambda of: of.name)
def test_all_levels_agree(component, dtype: torch.dtype) -> None:
    left_out = slow_or_other(component, COMPONENTS, dtype)
    found, nothing = problems(component, (24, 256), dtype, left_out)
    assert found == nothing


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda of: of.name)
def test_the_reference_is_the_formula(component) -> None:
    reference_is_the_formula(component, (8, 64))


@pytest.mark.parametrize("component", [of for of in COMPONENTS if of.name != "swiglu"], ids=lambda of: of.name)
def test_a_kernel_finishes_a_block_that_is_not_full_and_takes_any_layout(component) -> None:
    x = 8 * torch.randn(37, 61, 2, device=DEVICE)[..., 0].t()  # elements apart, rows within columns
    incoming = torch.randn(37, 61, device=DEVICE).t()
    functions = [component.levels[level]() for level in (1, 4)]
    leaves = [x.detach().requires_grad_() for _ in functions]
    expected, y = (function(leaf) for function, leaf in zip(functions, leaves, strict=True))
    gradient, own = (torch.autograd.grad(*each, incoming)[0] for each in zip((expected, y), leaves, strict=True))
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(own, gradient, rtol=1e-5, atol=1e-5)

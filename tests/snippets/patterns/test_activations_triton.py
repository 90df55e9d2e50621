"""A kernel finishes a block that is not full, and takes any layout."""

import pytest
import torch

from snippets.patterns.activations import COMPONENTS
from tests.snippets.patterns.components import DEVICE


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

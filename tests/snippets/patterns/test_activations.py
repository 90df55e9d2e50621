"""Activations: every level that runs here agrees with float64, forward and backward, in fp32 and bf16."""

import pytest
import torch

from snippets.patterns.activations import COMPONENTS
from snippets.patterns.compare_levels import compare

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = DEVICE.type == "cuda"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("component", COMPONENTS, ids=lambda of: of.name)
def test_all_levels_agree(component, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    left_out = set()
    if not ON_GPU:
        left_out = {5} if component is COMPONENTS[-1] else {3, 5}  # the compiler takes seconds, so once
    if dtype == torch.bfloat16:
        left_out |= {3} if ON_GPU else {3, 4}  # Triton's interpreter cuts off to bf16 where a GPU rounds
    functions = {str(number): make() for number, make in component.levels.items() if number not in left_out}
    inputs = component.inputs((24, 256), dtype, DEVICE)
    found = compare(functions, inputs, component.gradients, component.reference, str(component.yardstick), rounds=0)
    assert {line.name: line.problem for line in found.lines} == dict.fromkeys(functions, "")


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda of: of.name)
def test_the_reference_is_the_formula(component) -> None:
    """Level 0 is what the page shows as the formula; in float64 it is the reference, to rounding."""
    inputs = component.inputs((8, 64), torch.float64, torch.device("cpu"))
    expected = component.reference(*inputs.values())
    torch.testing.assert_close(component.levels[0]()(*inputs.values()), expected, rtol=1e-12, atol=1e-12)


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

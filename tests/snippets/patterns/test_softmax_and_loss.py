"""Softmax and losses: every level that runs here agrees with float64, forward and backward, in fp32 and bf16."""

import pytest
import torch

from snippets.patterns.compare_levels import compare
from snippets.patterns.softmax_and_loss import COMPONENTS, MASKED_SOFTMAX

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
    # level 0 computes in fp32 inside
    torch.testing.assert_close(component.levels[0]()(*inputs.values()), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("level", [1, 3, 4])
def test_what_the_mask_leaves_out_is_zero_with_a_gradient_of_zero(level: int) -> None:
    inputs = MASKED_SOFTMAX.inputs((8, 64), torch.float32, DEVICE)
    x, keep = inputs["x"].requires_grad_(), inputs["keep"]
    y = MASKED_SOFTMAX.levels[level]()(x, keep)
    (gradient,) = torch.autograd.grad(y.square().sum(), x)
    assert not y[~keep].any()
    assert not gradient[~keep].any()
    torch.testing.assert_close(y.sum(-1), torch.ones(8, device=DEVICE))

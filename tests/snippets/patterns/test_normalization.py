"""The norms: every level that runs here agrees with float64, forward and backward, in fp32 and bf16."""

import pytest
import torch

from snippets.patterns.compare_levels import compare
from snippets.patterns.normalization import COMPONENTS

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("component", COMPONENTS, ids=lambda of: of.name)
def test_all_levels_agree(component, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    here = {number: make for number, make in component.levels.items() if number != 3 or dtype == torch.float32}
    functions = {str(number): make() for number, make in here.items() if number < 5 or DEVICE.type == "cuda"}
    inputs = component.inputs((24, 256), dtype, DEVICE)
    found = compare(functions, inputs, component.gradients, component.reference, str(component.yardstick), rounds=0)
    assert {line.name: line.problem for line in found.lines} == dict.fromkeys(functions, "")


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda of: of.name)
def test_the_reference_is_the_formula(component) -> None:
    """Level 0 is what the page shows as the formula; in float64 it is the reference, to rounding."""
    inputs = component.inputs((8, 64), torch.float64, torch.device("cpu"))
    expected = component.reference(*inputs.values())
    rtol = 1e-5 if component.name == "rms_norm" else 1e-12  # which computes in fp32 inside
    torch.testing.assert_close(component.levels[0]()(*inputs.values()), expected, rtol=rtol, atol=rtol)

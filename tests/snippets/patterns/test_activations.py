"""The activations: every level that runs here agrees with float64, forward and backward, in fp32 and bf16."""

import pytest
import torch

from snippets.patterns.activations import COMPONENTS
from snippets.patterns.compare_levels import compare

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
    inputs = component.inputs((8, 64), torch.float64, torch.device("cpu"))
    expected = component.reference(*inputs.values())
    for level in (0, 1):
        torch.testing.assert_close(component.levels[level]()(*inputs.values()), expected, rtol=1e-12, atol=1e-12)

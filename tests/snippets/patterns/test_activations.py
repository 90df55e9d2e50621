"""Activations: every level that runs here agrees with float64, forward and backward, in fp32 and bf16."""

import pytest
import torch

from snippets.patterns.activations import COMPONENTS
from tests.snippets.patterns.components import problems, slow_or_other


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("component", COMPONENTS, ids=lambda of: of.name)
def test_all_levels_agree(component, dtype: torch.dtype) -> None:
    left_out = slow_or_other(component, COMPONENTS, dtype)
    found, nothing = problems(component, (24, 256), dtype, left_out)
    assert found == nothing

"""The norms: every level that runs here agrees with float64, forward and backward, in fp32 and bf16."""

import pytest
import torch

from snippets.patterns.normalization import COMPONENTS
from tests.snippets.patterns.components import ON_GPU, problems, reference_is_the_formula


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("component", COMPONENTS, ids=lambda of: of.name)
def test_all_levels_agree(component, dtype: torch.dtype) -> None:
    left_out = ({3} if dtype == torch.bfloat16 else set()) | (set() if ON_GPU else {5})
    found, nothing = problems(component, (24, 256), dtype, left_out)
    assert found == nothing


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda of: of.name)
def test_the_reference_is_the_formula(component) -> None:
    rtol = 1e-5 if component.name == "rms_norm" else 1e-12  # which computes in fp32 inside
    reference_is_the_formula(component, (8, 64), rtol=rtol, atol=rtol)

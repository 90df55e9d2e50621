"""Linear layers: every level agrees with float64, forward and backward."""

import pytest
import torch

from snippets.patterns.linear import COMPONENTS
from tests.snippets.patterns.components import problems, reference_is_the_formula


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("component", COMPONENTS, ids=lambda of: of.name)
def test_all_levels_agree(component, dtype: torch.dtype) -> None:
    # the compiler takes a grouped product in bf16 alone; of the others one dtype is enough to compile
    to_compile = torch.bfloat16 if component.name == "experts" else torch.float32
    left_out = set() if dtype == to_compile else {3}
    found, nothing = problems(component, component.shapes["tiny"], dtype, left_out)
    assert found == nothing


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda of: of.name)
def test_the_reference_is_the_formula(component) -> None:
    reference_is_the_formula(component, component.shapes["tiny"])

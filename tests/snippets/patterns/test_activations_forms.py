"""What PyTorch has is the formula that is written out."""

import pytest

from snippets.patterns.activations import COMPONENTS
from tests.snippets.patterns.components import reference_is_the_formula


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda of: of.name)
def test_the_reference_is_the_formula(component) -> None:
    reference_is_the_formula(component, (8, 64))

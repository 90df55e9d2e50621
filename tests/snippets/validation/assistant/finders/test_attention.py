"""Attention: of PyTorch's own module, too."""

import pytest
from torch import nn

from snippets.validation.assistant.found import find
from tests.snippets.validation.planted import fusion
from tests.snippets.validation.planted.seen import evidence, faults

pytestmark = pytest.mark.usefixtures("one_core")


def test_weights_that_nobody_asked_for():
    module, x = nn.MultiheadAttention(64, 4, batch_first=True), fusion.sequence()
    (found,) = faults(find(*evidence(lambda: (module, x, x, x))))
    assert found.kind == "attention" and found.title.startswith("Attention that makes its weights")

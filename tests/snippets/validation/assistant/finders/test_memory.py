"""Memory: what is no fault of the author's."""

import pytest
from torch import nn

from snippets.validation.assistant.found import find
from tests.snippets.validation.planted import fusion
from tests.snippets.validation.planted.seen import evidence, faults

pytestmark = pytest.mark.usefixtures("one_core")


class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.utils.parametrizations.spectral_norm(nn.Linear(64, 64))

    def forward(self, x):
        return self.fc(x)


def test_copies_that_pytorch_makes_itself_are_not_the_authors():
    assert not faults(find(*evidence(lambda: (Spectral(), fusion.sequence()))))

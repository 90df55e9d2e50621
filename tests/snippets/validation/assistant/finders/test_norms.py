"""Norms, in other spellings than those of the planted faults."""

import pytest
from torch import nn

from snippets.validation.assistant.found import find
from tests.snippets.validation.planted import fusion
from tests.snippets.validation.planted.seen import evidence, faults

pytestmark = pytest.mark.usefixtures("one_core")


class Lengths(nn.Module):
    def forward(self, x):
        return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-6)


class OverTime(nn.Module):
    def forward(self, x):
        return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)


@pytest.mark.parametrize(
    ("module", "title"),
    [(Lengths(), "RMSNorm written out"), (OverTime(), "A norm written out")],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
def test_other_spellings(module, title):
    (found,) = faults(find(*evidence(lambda: (module, fusion.sequence()))))
    assert (found.kind, found.title) == ("norm", title)

"""Norms, in other spellings than those of the planted faults."""

import pytest
import torch
import torch.nn.functional as F
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


class Activated(nn.Module):
    """A norm and its activation, beside more or less of other work."""

    def __init__(self, wide):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(64), nn.Linear(64, wide)

    def forward(self, x):
        return self.out(F.gelu(self.norm(x)))


@pytest.mark.parametrize(("wide", "weight"), [(64, "finding"), (8192, "note")])
def test_a_norm_and_its_activation_are_a_finding_where_they_move_a_part_of_all(wide, weight):
    found = find(*evidence(lambda: (Activated(wide), torch.randn(64, 64)), sizes=False))
    assert [one.weight for one in found if one.kind == "norm-activation"] == [weight]

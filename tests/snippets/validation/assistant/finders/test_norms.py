"""Norms, in other spellings than those of the planted faults."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from snippets.validation.assistant.found import find
from tests.snippets.validation.planted import fusion
from tests.snippets.validation.planted.seen import evidence, faults, recorded

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


class Undone(nn.Module):
    """A forecast of a series in units of its own deviation, which are undone at the end; or only normalized."""

    def __init__(self, undoes, unbiased):
        super().__init__()
        self.undoes, self.unbiased, self.out = undoes, unbiased, nn.Linear(64, 64)

    def forward(self, x):
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True, unbiased=self.unbiased) + 1e-5
        y = self.out((x - mean) / std)
        return y * std + mean if self.undoes else y


@pytest.mark.parametrize(
    ("undoes", "unbiased", "times"), [(True, True, 0), (True, False, 0), (False, True, 0), (False, False, 1)]
)
def test_a_norm_that_no_function_does_is_left_alone(undoes, unbiased, times):
    found = find(*recorded(lambda: (Undone(undoes, unbiased), fusion.sequence())))
    assert len([one for one in found if one.kind == "norm"]) == times


class Activated(nn.Module):
    """A norm and its activation, beside more or less of other work."""

    def __init__(self, wide):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(64), nn.Linear(64, wide)

    def forward(self, x):
        return self.out(F.gelu(self.norm(x)))


@pytest.mark.parametrize(
    ("wide", "rows", "weight"), [(64, 2**13, "finding"), (4096, 2**13, "note"), (64, 2**12, "note")]
)
def test_a_norm_and_its_activation_are_a_finding_where_they_move_much_and_a_part_of_all(wide, rows, weight):
    found = find(*recorded(lambda: (Activated(wide), torch.randn(rows, 64))))
    assert [one.weight for one in found if one.kind == "norm-activation"] == [weight]

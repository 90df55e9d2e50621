"""What a call leaves behind is compared: every wrong change of a list is refused, and every right one passes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from snippets.validation.assistant import validate
from snippets.validation.assistant.report import as_text
from snippets.validation.assistant.subject import Refused, Subject
from snippets.validation.assistant.verdict import compared, unknown_to
from tests.snippets.validation.planted.right_changes import RIGHT
from tests.snippets.validation.planted.wrong_changes import WRONG

pytestmark = pytest.mark.usefixtures("one_core")


def problems(change):
    """What is wrong with a changed module; an error of it counts as none that the check has found."""
    before, after, inputs = change.made()
    subjects = [Subject(module, inputs, {}) for module in (before, after)]
    checks, _ = compared(*subjects, unknown_to(after, before))
    assert checks
    return [check.problem for check in checks if not check.holds]


def test_every_wrong_change_is_refused():
    assert len(WRONG) >= 30
    assert [name for name, change in WRONG.items() if not problems(change)] == []


def test_every_right_change_passes():
    assert len(RIGHT) >= 20
    assert {name: found[0] for name, change in RIGHT.items() if (found := problems(change))} == {}


class Dropping(nn.Module):
    """The part of a transformer block in which memory is saved by computing dropout again."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x):
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), 0.1, self.training)


@pytest.mark.parametrize(("budget", "right"), [(0.2, False), (1.0, True)])
def test_gradients_of_another_dropout_are_seen(budget, right):
    """Below a half, compiled code computes dropout again in backward, and draws other numbers for it."""
    torch.manual_seed(0)
    module, x = Dropping(), torch.randn(16, 32)
    compiled = torch.compile(module, backend="aot_eager_decomp_partition")  # all of it but the kernels
    subjects = [Subject(one, (x,), {}) for one in (module, compiled)]
    with torch._functorch.config.patch(activation_memory_budget=budget):
        checks, _ = compared(*subjects, set())
    wrong = [check.name for check in checks if not check.holds]
    assert (not wrong) == right and all("gradient" in name for name in wrong)


class Empty(nn.Module):
    def forward(self, x):
        return ()


def test_nothing_to_compare_is_an_error():
    with pytest.raises(Refused, match="Empty: a call gives no tensor, number or word"):
        validate(Empty(), Empty(), torch.randn(2))


def test_the_verdict_in_words_and_the_status_agree(untimed):
    """Both come from all results, whatever these are."""
    for name, table in (("tokens + 1", WRONG), ("argmax by topk", RIGHT)):
        before, after, inputs = table[name].made()
        verdict = validate(before, after, *inputs, rounds=5)
        assert verdict.right == as_text(verdict).startswith("right") == (table is RIGHT)
        assert as_text(verdict).startswith("WRONG") != verdict.right


def test_what_the_original_cannot_do_in_float64_is_held_against_itself(untimed):
    before, after, inputs = RIGHT["the same"].made()
    before.run = after.run = lambda m, x: m.fc(x) if x.dtype == torch.float32 else m.fc(x, x)
    verdict = validate(before, after, *inputs, rounds=5)
    assert verdict.right and "cannot run in float64" in as_text(verdict)
    after.fc.weight.data += 1e-3
    assert not validate(before, after, *inputs, rounds=5).right

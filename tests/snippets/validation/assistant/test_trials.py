"""Trials: what is wrong, slower or broken is refused, and what is right and faster is suggested."""

from functools import partial

import pytest
import torch
from torch import nn

from snippets.validation.assistant import candidates, trials
from snippets.validation.assistant.graphs import capture
from snippets.validation.assistant.report import outcome
from snippets.validation.assistant.stages import Stages
from snippets.validation.assistant.subject import Subject
from snippets.validation.assistant.verdict import Ratio
from tests.snippets.validation.planted import fusion, readiness

pytestmark = pytest.mark.usefixtures("one_core")


class Sine(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(32, 32)

    def forward(self, x):
        return torch.sin(self.fc(x))


def trial(change, module=None, x=None):
    candidate = candidates.Candidate("a change", "code", "index.md", change)
    return tried(Subject(module or Sine(), (x if x is not None else torch.randn(16, 32),), {}), candidate)


def tried(subject, candidate):
    return trials.tried(subject, candidate, *trials.reference_for(subject)[:2])


def test_a_wrong_change_is_refused_and_gets_no_time():
    def wrong(module):
        module.fc.bias.data += 1e-3
        return module

    outcome = trial(wrong)
    assert outcome.refused.startswith("the check fails: output 0") and outcome.ratio is None


def test_a_change_that_gains_nothing_is_refused():
    class Slower(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, x):
            for _ in range(20):
                y = self.module(x)
            return y

    assert trial(Slower).refused.startswith("no faster: 0.")


@pytest.mark.parametrize(
    ("ratio", "word"),
    [
        (Ratio(0.5, 0.98, 1.6), "not decided: "),
        (Ratio(0.95, 1.0, 1.05), "no faster: "),
        (Ratio(0.4, 0.5, 0.7), "no faster: "),
    ],
)
def test_a_ratio_that_may_be_any_decides_nothing(ratio, word, monkeypatch):
    monkeypatch.setattr(trials, "timed_trial", lambda *_: (ratio, 1.0))
    assert trial(lambda module: module).refused.startswith(word)


def test_what_is_compiled_anew_at_each_call_is_not_compiled():
    subject = Subject(readiness.CountsSteps(), (readiness.rows(),), {})
    found = trials.try_all(subject, [], capture(subject), Stages(300.0, print))
    assert [one.refused for one in found] == [
        "not tried: it would be compiled anew at each call, see the recompilations"
    ]


def test_no_trial_begins_when_the_budget_is_spent():
    subject = Subject(Sine(), (torch.randn(16, 32),), {})
    found = trials.try_all(subject, [], capture(subject), Stages(0.0, print))
    assert [one.refused for one in found] == ["not tried: 0 s were spent before"]


def test_a_change_that_raises_is_refused():
    def broken(module):
        raise RuntimeError("no such compiler\nand a long story")

    assert trial(broken).refused == "RuntimeError: no such compiler"


def test_a_change_that_is_right_and_faster_is_suggested():
    slow = fusion.PhysicsLoss()
    slow.blend = lambda u: [type(slow).blend(slow, u) for _ in range(20)][-1]

    def quick(module):
        module.blend = partial(fusion.PhysicsLoss.blend, module)
        return module

    outcome = trial(quick, slow, fusion.sequence())
    assert outcome.suggested and outcome.ratio.low > 1.0 and outcome.error <= 1.0


class Half(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return 0.5 * self.module(x)


def in_bfloat16(module):
    return candidates.Inside(module, lambda: torch.autocast("cpu", torch.bfloat16))


@pytest.mark.parametrize(
    ("change", "rounding", "word"),
    [(in_bfloat16, 2.0**-8, "trade"), (in_bfloat16, 0.0, "bound"), (Half, 2.0**-8, "nonsense")],
)
def test_a_change_of_precision_is_a_trade_and_no_suggestion(change, rounding, word, monkeypatch):
    """Coarser numbers miss the bound of finer ones; how far both are from float64 is told, and nonsense is refused."""
    monkeypatch.setattr(trials, "timed_trial", lambda *_: (Ratio(1.9, 2.0, 2.1), None))
    candidate = candidates.Candidate("a change", "code", "index.md", change, rounding=rounding)
    found = tried(Subject(Sine(), (torch.randn(16, 32),), {}), candidate)
    assert not found.suggested and found.trade == (word == "trade")
    if word == "trade":
        before, after = found.errors
        assert before < 1e-6 < 1e-4 < after < 1e-1
        assert outcome(found).endswith("a trade for you to decide")
    else:
        assert found.refused.startswith("the check fails: ") and found.ratio is None

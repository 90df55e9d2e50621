"""The planted slowdown, and three sides that take turns at the work."""

import pytest
import torch

from snippets.validation import regressions_work
from snippets.validation.regressions_work import UNITS, measure, planted, repeated, unchanged


def test_a_planted_slowdown_is_one_unit_in_twenty(monkeypatch):
    done = []
    monkeypatch.setattr(regressions_work, "units", lambda: {"work": lambda: done.append(1)})
    unchanged()["work"]()
    assert len(done) == UNITS == 20
    planted()["work"]()
    assert len(done) == 41
    repeated(lambda: done.append(1), 0)()
    assert len(done) == 41


@pytest.mark.skipif(torch.cuda.is_available(), reason="three processes of each kind take a GPU long to start")
def test_old_code_the_same_and_slower_code_take_turns():
    (taken,) = measure(processes=1, samples=3, seconds=0.001)
    assert list(taken) == ["interpreter", "checksum"]
    for sides in taken.values():
        assert {side: len(samples) for side, samples in sides.items()} == {"old": 3, "same": 3, "slow": 3}

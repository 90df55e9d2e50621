"""What varies between runs of the same code, and the simulation of the gate on known noise."""

import math
import random

import pytest
import torch

from snippets.validation import regressions
from snippets.validation.regressions import (
    UNITS,
    gate,
    louder,
    measure,
    naive,
    rates,
    ratios,
    repeated,
    spread,
    spreads,
)


def test_a_planted_slowdown_is_one_unit_in_twenty(monkeypatch):
    done = []
    monkeypatch.setattr(regressions, "units", lambda: {"work": lambda: done.append(1)})
    regressions.unchanged()["work"]()
    assert len(done) == UNITS == 20
    regressions.planted()["work"]()
    assert len(done) == 41
    repeated(lambda: done.append(1), 0)()
    assert len(done) == 41


def test_spread_is_of_the_percentiles():
    assert spread([float(value) for value in range(11)]) == pytest.approx(3 / 5)
    assert spread([2.0] * 5) == 0


def test_taking_turns_narrows_what_drift_widens():
    """Processes that are 10% apart, and samples that are exact: only the paired ratios agree."""
    taken = [
        {"work": {side: [1.0 + 0.1 * run] * 5 for side in ("old", "same")}}
        for run in random.Random(0).sample(range(8), 8)
    ]
    found = spreads(taken, "work")
    assert found["ratios, taking turns"] == 0
    assert found["samples of one process"] == 0
    assert found["medians of processes"] > 0.05 and found["ratios, run one after the other"] > 0.05


@pytest.mark.parametrize(("ratio", "status"), [(1.0, "not slower"), (1.05, "slower"), (1.02, "not slower")])
def test_without_noise_the_gate_is_always_right(ratio, status):
    assert gate(lambda: ratio) == status
    assert rates([ratio] * 3, gates=5)[status] == 1


def test_louder_keeps_the_truth_and_scales_the_noise():
    assert louder([0.99, 1.0, 1.01], 1.05, 1) == pytest.approx([0.99 * 1.05, 1.05, 1.01 * 1.05])
    assert louder([0.99, 1.0, 1.01], 1.0, 2) == pytest.approx([0.9801, 1.0, 1.0201])
    assert louder([1.98, 2.0, 2.02], 1.0, 2) == pytest.approx([0.9801, 1.0, 1.0201])


def test_the_usual_check_has_a_half_of_the_limit_as_its_limit():
    assert naive([1.0], [1.02]) == 0
    assert naive([1.0], [1.03]) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="three processes of each kind take a GPU long to start")
def test_old_code_the_same_and_slower_code_take_turns():
    (taken,) = measure(processes=1, samples=3, seconds=0.001)
    assert list(taken) == ["interpreter", "checksum"]
    for name, sides in taken.items():
        assert {side: len(samples) for side, samples in sides.items()} == {"old": 3, "same": 3, "slow": 3}
        assert len(ratios([taken], name, "slow")) == 1


@pytest.mark.parametrize("noise", (0.002, 0.02, 0.2))
@pytest.mark.parametrize("disturbed", (0, 0.3))
def test_whatever_the_noise_the_gate_errs_at_most_once_in_a_hundred(noise: float, disturbed: float):
    """Beyond what it can judge, it refuses; some pairs are disturbed by other work, at any side."""
    chance = random.Random(0)
    made = [
        math.exp(chance.gauss(0, noise) + (chance.random() < disturbed) * chance.gauss(0, 5 * noise)) for _ in range(40)
    ]
    assert rates(louder(made, 1.0, 1), gates=300)["slower"] <= 0.01
    assert rates(louder(made, 1.05, 1), gates=300)["not slower"] <= 0.01

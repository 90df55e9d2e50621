"""What varies between runs of the same code, by the way to compare."""

import random

import pytest

from snippets.validation.regressions import ratios, spread, spreads


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


def test_a_ratio_for_each_pair_of_processes():
    taken = [{"work": {"old": old, "slow": slow}} for old, slow in (([2.0, 4.0], [3.0, 6.0]), ([1.0], [2.0]))]
    assert ratios(taken, "work", "slow") == [1.5, 2.0]
    assert ratios(taken, "work", "old") == [1.0, 1.0]

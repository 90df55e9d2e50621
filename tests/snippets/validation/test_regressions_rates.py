"""The gate, simulated on known noise."""

import math
import random

import pytest

from snippets.validation.regressions_rates import gate, louder, naive, rates


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

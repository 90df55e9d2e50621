"""How often the gate is wrong, and how often a usual check is, on pairs drawn from real ones."""

import random
import statistics
from collections.abc import Callable, Sequence

from snippets.validation.gate import LOOKS, PAIRS, Verdict, paired

LIMIT = 0.05


# --8<-- [start:simulate]
def gate(draw: Callable[[], float]) -> str:
    """What the gate says of pairs that come from `draw`, with all its looks."""
    found: list[float] = []
    for _ in range(LOOKS):
        found += [draw() for _ in range(PAIRS)]
        verdict: Verdict = paired(found, LIMIT)
        if verdict.status != "not judged":
            break
    return verdict.status


def rates(real: Sequence[float], gates: int = 1000) -> dict[str, float]:
    """How often the gate gives each verdict on pairs drawn from real ones."""
    chance = random.Random(0)
    statuses = [gate(lambda: chance.choice(real)) for _ in range(gates)]
    return {status: statuses.count(status) / gates for status in ("not slower", "slower", "not judged")}


def louder(real: Sequence[float], truth: float, times: float) -> list[float]:
    """The same pairs with so many times the noise, around the ratio that the work really has."""
    middle = statistics.median(real)
    return [truth * (ratio / middle) ** times for ratio in real]


# --8<-- [end:simulate]


# --8<-- [start:naive]
def naive(old: Sequence[float], new: Sequence[float], gates: int = 1000) -> float:
    """How often a usual check says "slower": one run's mean against the mean that an earlier run has stored."""
    chance = random.Random(0)
    return sum(chance.choice(new) > (1 + LIMIT / 2) * chance.choice(old) for _ in range(gates)) / gates


# --8<-- [end:naive]

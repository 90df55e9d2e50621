"""Bounds that docs/pages/validation/regressions.md names; it has no case."""

from tests.benchmarks.bounds import bound


@bound("%", parts=50)
def small_speedup(parts: float) -> float:
    """One part in fifty."""
    return 1 / parts


@bound("%", limit=5, whole=100)
def limit_of_gate(limit: float, whole: float) -> float:
    """The slowdown that the gate looks for."""
    return limit / whole


@bound("%", units=20)
def slowdown_of_one_unit(units: float) -> float:
    """One unit of work in twenty."""
    return 1 / units


@bound("%", looks=3, benchmarks=40, chances=1024)
def wrongly_failed(looks: float, benchmarks: float, chances: float) -> float:
    """The changes that fail for nothing: a chance of error for each look at each benchmark."""
    return looks * benchmarks / chances

"""Bounds that docs/pages/validation/regressions.md names; it has no case."""

from tests.benchmarks.bounds import bound

small_speedup = bound("%", "1 / parts", parts=50)  # One part in fifty.
limit_of_gate = bound("%", "limit / whole", limit=5, whole=100)  # The slowdown that the gate looks for.
slowdown_of_one_unit = bound("%", "1 / units", units=20)  # One unit of work in twenty.
# The changes that fail for nothing: a chance of error for each look at each benchmark.
wrongly_failed = bound("%", "looks * benchmarks / chances", looks=3, benchmarks=40, chances=1024)

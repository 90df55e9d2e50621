"""Bounds that docs/pages/validation/diagnosis.md names; it has no case."""

from tests.benchmarks.bounds import bound, captured


@bound("x", nine=22, one=2)
def passes_saved(nine: float, one: float) -> float:
    """How many times as often nine operations read or write the tensor as one kernel does."""
    return nine / one


@bound(
    "x",
    turns=captured("", "in turns, as in the table", which=1, of="validation/diagnosis_load"),
    alone=captured("", "in the second half of a second of steps", which=1, of="validation/diagnosis_load"),
)
def slower_in_turns(turns: float, alone: float) -> float:
    """How many times as long the kernel takes in turns as under its own load."""
    return turns / alone


@bound(
    "x",
    before=captured("", "in the second half of a second of steps", which=1, of="validation/diagnosis_load"),
    after=captured("", "in the second half of a second of steps", which=2, of="validation/diagnosis_load"),
)
def gained_under_load(before: float, after: float) -> float:
    """How many times as fast the step is, each version under its own load."""
    return before / after

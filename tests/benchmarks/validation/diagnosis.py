"""Bounds that docs/pages/validation/diagnosis.md names; it has no case."""

from functools import partial

from tests.benchmarks.bounds import bound, captured

printed = partial(captured, "", of="validation/diagnosis_load")
own = partial(printed, "in the second half of a second of steps")  # under its own load, before and after
# How many times as often nine operations read or write the tensor as one kernel does.
passes_saved = bound("x", "nine / one", nine=22, one=2)
# How many times as long the kernel takes in turns as under its own load.
slower_in_turns = bound("x", "turns / alone", turns=printed("in turns, as in the table", which=1), alone=own(which=1))
# How many times as fast the step is, each version under its own load.
gained_under_load = bound("x", "before / after", before=own(which=1), after=own(which=2))

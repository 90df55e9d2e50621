"""The benchmark file of the page is one that the gate can time, and its script runs."""

import random

from snippets.validation import gate_benchmark
from snippets.validation.gate import Side, take_turns
from tests.benchmarks.source import ROOT


def test_the_gate_times_each_benchmark_on_both_sides(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # threads of tiny models wait for each other
    sides = {name: Side(gate_benchmark.__file__, folder=str(ROOT)) for name in ("old", "new")}
    taken, _ = take_turns(sides, 2, 0.001, random.Random(0))
    assert taken.keys() == {"forward", "training step"}
    assert all(len(by_side[side]) == 2 for by_side in taken.values() for side in sides)


def test_the_script_says_what_runs(script):
    assert script("snippets.validation.gate_benchmark").stdout == "forward runs\ntraining step runs\n"

"""How a start is measured, and what the page says of the stored table."""

import re
import sys
from types import SimpleNamespace

import pytest

from snippets.compiler import ahead_of_time_starts
from snippets.compiler.ahead_of_time_starts import STAGES, started
from tests.benchmarks.captures import contents

CLOCK = """
for stage, seconds in (("torch", 1100), ("load", 1101), ("first call", 1103)):
    print(stage, seconds)
print("later call", 0.01)
"""


def test_a_stage_lasts_from_the_end_of_the_one_before_and_one_that_is_missing_takes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(ahead_of_time_starts, "time", SimpleNamespace(time=lambda: 1000.0))
    stages, later = started([sys.executable, "-c", CLOCK], tmp_path, tmp_path)
    assert list(stages) == list(STAGES)
    assert stages == {"torch": 100.0, "compiler": 0.0, "load": 1.0, "first call": 2.0}
    assert later == 0.01


def test_a_process_that_fails_is_said(tmp_path):
    with pytest.raises(RuntimeError, match="no such thing"):
        started([sys.executable, "-c", "raise SystemExit('no such thing')"], tmp_path, tmp_path)


def stored(name: str) -> list[str]:
    return contents("compiler/ahead_of_time", "cpu")[name].splitlines()


def seconds() -> dict[str, dict[str, float]]:
    head = ("torch", "compiler", "load", "first call", "in all", "later")
    rows = {row[:22].strip(): re.findall(r"\d+\.\d+", row[22:]) for row in stored("starts")[1:]}
    return {what: dict(zip(head, map(float, row), strict=True)) for what, row in rows.items()}


def test_who_starts_first():
    took = {what: row["in all"] for what, row in seconds().items()}
    assert took["package, C++"] < took["package, bare"] < took["package, warm"] < took["torch.compile, warm"]
    assert took["package, warm"] < took["package, cold"] < took["torch.compile, cold"]
    assert abs(took["package, bare"] - took["eager"]) < 0.2 * took["eager"]


def test_the_first_call_of_a_package_compiles_nothing():
    rows = seconds()
    assert all(row["first call"] < 0.1 for what, row in rows.items() if what.startswith("package"))
    assert rows["torch.compile, warm"]["first call"] > 1


def test_once_warm_a_package_is_no_slower_than_what_compiles_when_it_starts():
    later = {what: row["later"] for what, row in seconds().items()}
    fast = {what for what in later if what.startswith("package")}
    assert max(later[what] for what in fast) < min(later[what] for what in later if what not in fast)


def test_loading_into_an_empty_folder_takes_most_of_a_cold_start():
    cold = seconds()["package, cold"]
    assert cold["load"] > cold["in all"] / 2

"""When a mode pays, and who is done first."""

import pytest

from snippets.compiler import modes_table
from snippets.compiler.modes_table import about, break_even, table
from tests.benchmarks import captures


def test_break_even():
    assert break_even(paid=3.0, before=5e-3, after=2e-3) == pytest.approx(1000)
    assert about(break_even(3.0, 2e-3, 2e-3)) == about(break_even(3.0, 2e-3, 5e-3)) == "never"
    assert about(break_even(3.0, 2e-3, 1.99e-3)) == "never", "two runs differ by as much"
    assert (about(12_345.0), about(break_even(0.0, 2e-3, 1e-3))) == ("12,000", "at once")


def row(mode: str, compile: float, eager: float, now: float) -> dict:
    times, nothing = {"eager": eager, mode: now}, {"eager": None, mode: None}
    return {
        "workload": "mlp", "mode": mode, "compile": compile, "time": times,
        "peak": nothing, "kept": {"eager": 0, mode: 3 * 2**20},
    }  # fmt: skip


def test_a_line_says_when_a_mode_pays():
    """The second process was on a slower host: eager tells by how much."""
    rows = [row("default", 2.0, 3e-3, 1e-3), row("reduce-overhead", 3.0, 6e-3, 1e-3)]
    rows.append({"workload": "mlp", "mode": "max-autotune", "failed": "no"})
    _, eager, default, graphs, failed = table(rows, "mlp")
    assert eager.split() == ["eager", "3000.0", "us", "–", "0", "MiB"]
    assert default.split()[-3:] == ["2.0", "s", "1,000"]
    assert graphs.split()[-4:] == ["3.0", "s", "600", "1,000"]  # over default: 1 s, and 2 ms became 1 ms
    assert failed.split() == ["max-autotune", "no"]
    assert list(table(rows, "decode")) == ["decode: not measured"]


def test_descents_stand_side_by_side():
    settings = {"default": ["a"], "coordinate-descent": ["b", "c"], "max-autotune": ["d"]}
    rows = [{"workload": "norms", "mode": mode, "settings": found, "steps": 7} for mode, found in settings.items()]
    assert [line.split(":")[0].strip() for line in modes_table.descents(rows, "norms")] == [
        "default", "a", "coordinate-descent", "b", "c",
    ]  # fmt: skip


def test_totals_name_who_is_done_first():
    rows = [row("default", 1.5, 3e-3, 1e-3), row("max-autotune", 20.0, 3e-3, 5e-4)]
    head, eager, default, search, first = (line.split() for line in modes_table.totals(rows, "mlp"))
    assert head == ["calls", "1,000", "100,000", "10,000,000"]
    assert eager[1::2] == ["3.0", "300.0", "30,000.0"]
    assert default[1::2] == ["2.5", "101.5", "10,001.5"]
    assert search[1::2] == ["20.5", "70.0", "5,020.0"]
    assert first == ["done", "first", "default", "max-autotune", "max-autotune"]
    assert max(len(line) for line in modes_table.totals(rows, "mlp")) <= captures.WIDTH

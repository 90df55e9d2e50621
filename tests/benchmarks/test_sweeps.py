"""Every entry of a launch table is backed: it was timed beside its alternatives, and none of them was much faster."""

import importlib
import json
from pathlib import Path

import pytest

from tests.benchmarks.source import ROOT
from tests.benchmarks.sweeps import chosen
from tests.benchmarks.sweeps.__main__ import OUT

KERNELS = sorted(path.stem for path in (ROOT / "kernels").glob("[a-z]*.py"))
SLOWER = 1.05  # a table with few entries gives up this much at most


def newest(kernel: str) -> Path:
    records = sorted((OUT / kernel).glob("*.json"))
    assert records, f"expected a sweep of {kernel} in {OUT}, found none: python -m tests.benchmarks.sweeps {kernel}"
    return records[-1]


@pytest.mark.parametrize("name", KERNELS)
def test_the_launch_table_is_backed_by_the_newest_sweep(name: str):
    record = json.loads(newest(name).read_text())
    for point in record["points"]:
        where = f"{name} {point['direction']} {point['shape']} {point['dtype']}"
        options = chosen(name, point["direction"], point["asked"]["row_length"], point["asked"]["bits"])
        seconds = [row["time"]["p50"] for row in point["tried"] if row["options"] == options]
        assert seconds, f"{where}: {options} was not tried"
        assert len(point["tried"]) > 1, f"{where}: no alternative was tried"
        best = point["tried"][0]
        slower = seconds[0] > SLOWER * best["time"]["p50"]
        assert not slower, f"{where}: {options} takes {seconds[0]}, {best['options']} {best['time']['p50']}"


@pytest.mark.parametrize("name", KERNELS)
def test_a_sweep_can_be_run_again(name: str):
    plan = importlib.import_module(f"tests.benchmarks.sweeps.{name}")
    points = list(plan.points())
    assert {point.direction for point in points} == {"forward", "backward"}
    assert all(isinstance(options, dict) for point in points for options in plan.alternatives(point))

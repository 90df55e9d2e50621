"""The same step by several clocks: what a line counts, and what the driver is asked under load."""

import re
import stat

import torch

from snippets.validation import diagnosis_load
from snippets.validation.diagnosis_load import by_each_clock, under_load

CPU = torch.device("cpu")


def test_each_line_has_a_time_of_each_step():
    found = by_each_clock({"fp32": lambda: torch.ones(2**16).sort(), "bf16": lambda: torch.ones(8)}, CPU)
    assert list(found) == ["in a report: five steps after a pause", "in turns, as in the table"]
    assert all(re.fullmatch(r"\d+\.\d{3} ms", time) for times in found.values() for time in times)
    assert {len(times) for times in found.values()} == {2}


def test_the_driver_is_asked_while_the_step_runs(monkeypatch, tmp_path):
    monkeypatch.setattr(diagnosis_load, "seconds_per_call", lambda step, device, at_least: step())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert under_load(lambda: None, CPU, "clocks.sm") == "not known"
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f'#!/bin/sh\nwhile ! [ -e {tmp_path}/stepped ]; do :; done\necho "$1 1500 MHz"\necho other GPU\n')
    smi.chmod(smi.stat().st_mode | stat.S_IXUSR)
    calls = []

    def step() -> None:
        calls.append(len(calls))
        if len(calls) == 3:  # by then nvidia-smi was started, and waits for this
            (tmp_path / "stepped").touch()

    assert under_load(step, CPU, "clocks.sm") == "--query-gpu=clocks.sm 1500 MHz"
    assert len(calls) > 3

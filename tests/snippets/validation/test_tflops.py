"""One matmul under several timers: what is asked of the driver, and what a CPU prints."""

import re
import stat

import pytest
import torch

from snippets.validation import tflops
from snippets.validation.tflops import DATA, line, timers, watched

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def driver(monkeypatch, tmp_path):
    """A driver that reads out 1000 MHz and 300 W, then 1200 MHz and 500 W, then half a line."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\ntouch asked\nprintf '1000, 300\\n1100, 350\\n1200, 500\\n12'\nsleep 60 >&- & wait\n")
    smi.chmod(smi.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_clock_and_power_are_the_medians_of_whole_readings(driver):
    with watched() as gpu:
        while not (driver / "asked").exists():
            pass
        assert gpu == {}
    assert gpu in ({}, {"MHz": 1100.0, "W": 350.0})  # nothing, where it was stopped before it wrote


def test_the_three_kinds_of_data_differ():
    zeros, integers, normal = (made(64, HERE) for made in DATA.values())
    assert not zeros.any()
    assert set(integers.unique().tolist()) == {-2, -1, 0, 1, 2}
    assert 0.9 < normal.std() < 1.1


def test_a_rate_is_flops_over_the_seconds_that_the_timer_gives(monkeypatch):
    monkeypatch.setattr(tflops, "watched", lambda: pytest.fail("a CPU has no such driver"))
    assert line(lambda: None, lambda call: 0.5, 10**12, torch.device("cpu")) == "  2.00 TFLOP/s"


@pytest.mark.skipif(HERE.type == "cpu", reason="a CPU has one timer")
def test_each_timer_of_a_gpu_is_within_reach_of_the_others():
    a = torch.randn(4096, 4096, device=HERE).bfloat16()
    times = {name: seconds(lambda: a @ a) for name, seconds in timers(HERE).items()}
    assert max(times.values()) < 2 * min(times.values()), times


@pytest.mark.skipif(HERE.type == "cuda", reason="takes minutes on a GPU")
def test_the_script_prints_a_line_for_each_kind_of_data(script):
    done = script("snippets.validation.tflops")
    assert done.returncode == 0, done.stderr
    first, *lines = done.stdout.splitlines()
    assert first == "==== 512"
    assert [re.sub(r" +wall clock +[\d.]+ TFLOP/s$", "", text) for text in lines] == list(DATA)

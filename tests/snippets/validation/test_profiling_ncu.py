"""What is asked of Nsight Compute, and what is made of its answers: a script in its place gives them."""

import math
import os
import re

import pytest

from snippets.validation import profiling_ncu
from snippets.validation.profiling_ncu import COUNTERS, ask

HEAD = '"ID","Process ID","Kernel Name","CC","dram__bytes_read.sum","dram__bytes_write.sum","gpu__time_duration.sum"'
ANSWER = f"""==PROF== Connected to process 1 (python)
==PROF== Profiling "_forward_kernel" - 0: 0%....50%....100% - 8 passes
==PROF== Disconnected from process 1
{HEAD}
"","","","","byte","Kbyte","nsecond"
"0","1","_forward_kernel","9.0","268,435,456","268,400","130,000"
"1","1","void at::native::(anonymous namespace)::copy_kernel<4, bool>(int)","9.0","1,000","n/a","2,000"
"""
FAILED = r"==ERROR== Failed to find metric regex:^dram__bytes_write\.(sum|min|max|avg|pct|ratio|max_rate)$"


@pytest.fixture
def ncu(tmp_path, monkeypatch):
    """A script in ncu's place; it notes what it was asked, and answers."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def answers(text: str, besides: str = "", without: str = "never") -> None:
        """`besides` is the answer if the counter `without` is asked for."""
        (tmp_path / "answer").write_text(text)
        (tmp_path / "besides").write_text(besides)
        script = tmp_path / "ncu"
        script.write_text(
            f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\n'
            f'case "$*" in *{without}*) cat {tmp_path}/besides;; *) cat {tmp_path}/answer;; esac\n'
        )
        script.chmod(0o755)

    answers.asked = tmp_path / "asked"
    return answers


def test_a_row_for_each_kernel_in_seconds_and_bytes(ncu):
    ncu(ANSWER)
    ours, copy = ask(["python", "-m", "x"], COUNTERS[:3])
    assert ours.kernel == "_forward_kernel"
    assert ours.counters["gpu__time_duration.sum"] == pytest.approx(130e-6)
    assert ours.traffic == 268_435_456 + 268_400_000
    assert math.isnan(copy.traffic) and math.isnan(copy.counters["launch__registers_per_thread"])
    asked = ncu.asked.read_text().split()
    assert asked[-3:] == ["python", "-m", "x"] and ",".join(COUNTERS[:3]) in asked
    assert asked[asked.index("--clock-control") + 1] == "none"


def test_a_counter_that_this_gpu_lacks_is_left_out(ncu):
    ncu(ANSWER, besides=FAILED, without="dram__bytes_write.sum")
    assert len(ask(["python"], COUNTERS[:3])) == 2
    assert ncu.asked.read_text().count("dram__bytes_write.sum") == 1 and len(ncu.asked.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "only the administrator"),
        ("==PROF== Connected\n==ERROR== The application returned an error code (1).", "returned an error code (1)"),
        ("", "It said: nothing"),
        (FAILED, "Failed to find metric"),
    ],
)
def test_why_nothing_was_counted_is_said(answer, message, ncu):
    ncu(answer)
    with pytest.raises(RuntimeError, match=re.escape(message)):
        ask(["python"], COUNTERS[2:3])


def test_without_ncu_it_says_where_to_find_it(monkeypatch):
    monkeypatch.setattr(profiling_ncu.shutil, "which", lambda name: None)  # neither on the PATH nor elsewhere
    with pytest.raises(RuntimeError, match="not on the PATH"):
        ask(["python"])

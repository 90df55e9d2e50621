"""One matmul under several timers, on three kinds of data, and what a CPU prints."""

import re

import pytest
import torch

from snippets.validation.tflops import DATA, timers

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_the_three_kinds_of_data_differ():
    zeros, integers, normal = (made(64, HERE) for made in DATA.values())
    assert not zeros.any()
    assert set(integers.unique().tolist()) == {-2, -1, 0, 1, 2}
    assert 0.9 < normal.std() < 1.1


@pytest.mark.skipif(HERE.type == "cpu", reason="a CPU has one timer")
def test_each_timer_of_a_gpu_is_within_reach_of_the_others():
    a = torch.randn(4096, 4096, device=HERE).bfloat16()
    times = {name: seconds(lambda: a @ a) for name, seconds in timers(HERE).items()}
    assert max(times.values()) < 2 * min(times.values()), times


@pytest.mark.skipif(HERE.type == "cuda", reason="takes minutes on a GPU")
def test_the_script_prints_a_line_for_each_kind_of_data(script):
    done = script("snippets.validation.tflops")
    assert done.returncode == 0, done.stderr
    section, heads, line = done.stdout.splitlines()
    assert section == "==== 512"
    assert heads.split() == list(DATA)
    assert re.fullmatch(r"this site: calls( +[\d.]+ TFLOP/s){3}", line)

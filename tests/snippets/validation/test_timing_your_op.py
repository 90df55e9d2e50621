"""Two versions are one function, three timers agree where they ask the same, and what needs a GPU says so."""

import re

import pytest
import torch

from snippets.validation import timing_your_op
from snippets.validation.equivalence import check
from snippets.validation.timing_your_op import benchmark, fused, three_timers, written_out

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CELL = r"\d+\.\d us"


def test_both_versions_are_the_same_function():
    x = torch.randn(32, 256, device=DEVICE)
    check({"output": fused(x)}, {"output": written_out(x)}, {"output": written_out(x.double())})


def test_pytorchs_timer_times_a_call_with_the_threads_that_there_are():
    threads = []
    number = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        seconds = benchmark(lambda: threads.append(torch.get_num_threads()))
    finally:
        torch.set_num_threads(number)
    assert set(threads) == {2} and 0 < seconds < 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="prints what a machine without a GPU prints")
def test_without_a_gpu_the_script_says_which_timers_need_one(script):
    done = script("snippets.validation.timing_your_op")
    assert re.search(rf"^written_out: {CELL}, most between {CELL} and {CELL}$", done.stdout, re.M)
    lines = done.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines if line.count("needs a GPU") == 2] == [
        'measure(mode="device")',
        "do_bench",
    ]
    assert sum(len(re.findall(CELL, line)) == 2 for line in lines) == 2


@gpu
def test_timers_that_ask_the_same_agree_on_a_gpu(capsys):
    three_timers(torch.randn(32768, 4096, device="cuda"))
    rows = [list(map(float, re.findall(r"([\d.]+) us", line))) for line in capsys.readouterr().out.splitlines()[2:]]
    device, do_bench, calls, timer = rows
    assert do_bench == pytest.approx(device, rel=0.2)
    assert timer == pytest.approx(calls, rel=0.2)


@gpu
def test_do_bench_gives_seconds():
    x = torch.randn(8192, 4096, device="cuda")
    assert 1e-6 < timing_your_op.do_bench(lambda: fused(x)) < 1e-2

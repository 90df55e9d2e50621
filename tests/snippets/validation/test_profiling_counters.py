"""What is printed of the counters, and the three kernels that are counted."""

import math

import pytest
import torch

from snippets.validation import profiling_counters
from snippets.validation.profiling_counters import calls, lines
from snippets.validation.profiling_ncu import COUNTERS, Counted


def test_a_line_for_each_counter_and_what_follows():
    values = (100e-6, 200e6, 200e6, 83.25, 60.0, 70.0, 50.0, 16.0, 33.3, 12.345, 40.0)
    numbers = dict(zip(COUNTERS, values, strict=True))
    found = list(lines([Counted("a", numbers), Counted("b<1>", numbers | {COUNTERS[1]: math.nan})], 100_000_000))
    assert found[:2] == ["1  a", "2  b"]
    cells = {line[:73].strip(): line[73:].split() for line in found[3:]}
    assert cells[COUNTERS[0]] == ["100.0", "us"] * 2
    assert cells[COUNTERS[1]] == ["200.0", "MB", "nan", "MB"]
    assert cells[COUNTERS[3]] == ["83.2", "%"] * 2 and cells[COUNTERS[9]] == ["12.35"] * 2
    assert cells["bytes from and to memory, over those that have to be moved"] == ["2.00", "x", "nan", "x"]
    assert cells["bytes from and to memory, per second"][:2] == ["4000", "GB/s"]
    assert max(map(len, found)) <= 112


def test_the_calls_move_the_tensor_once():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = {name: call() for name, call in calls(device, 8, 32).items()}
    torch.testing.assert_close(found["ours"], found["eager"], rtol=0.02, atol=0.02)
    assert found["transposed"].shape == (32, 8) and found["transposed"].is_contiguous()


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_without_a_gpu_it_says_so(capsys):
    profiling_counters.main()
    assert capsys.readouterr().out == "==== counters\nno GPU: there is nothing to count\n"

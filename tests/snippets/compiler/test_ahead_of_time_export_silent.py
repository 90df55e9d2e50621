"""What a program records once."""

import random

import torch

from snippets.compiler.ahead_of_time_export import Drawn
from snippets.compiler.ahead_of_time_export_silent import Buffer, Counter, Dropped, left_behind, three_calls


def test_non_strict_records_what_python_said_once():
    assert three_calls(Counter()) == "1.000 2.000 3.000   1.000 1.000 1.000"
    assert three_calls(Buffer()) == "1.000 2.000 3.000   1.000 2.000 3.000"
    assert left_behind() == "FakeTensor"
    random.seed(0)  # or of two draws three decimals may be the same
    drawn = three_calls(Drawn()).split()
    assert len(set(drawn[:3])) == 3 and len(set(drawn[3:])) == 1


def test_a_program_drops_out_what_its_module_dropped_out_when_it_was_exported():
    torch.manual_seed(0)
    assert len(set(three_calls(Dropped()).split()[3:])) == 3
    assert len(set(three_calls(Dropped().eval()).split())) == 1

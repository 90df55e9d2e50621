"""Two versions are one function, and the script times both."""

import re

import torch

from snippets.validation.equivalence import check
from snippets.validation.timing_your_op import fused, written_out

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CELL = r"\d+\.\d us"


def test_both_versions_are_the_same_function():
    x = torch.randn(32, 256, device=DEVICE)
    check({"output": fused(x)}, {"output": written_out(x)}, {"output": written_out(x.double())})


def test_the_script_prints_the_median_and_the_spread_of_both(script):
    done = script("snippets.validation.timing_your_op")
    for name in ("written_out", "fused"):
        assert re.search(rf"^{name}: {CELL}, most between {CELL} and {CELL}$", done.stdout, re.M)

"""The flushes fill the cache with what they say; without a GPU the script says what it expects."""

import pytest
import torch

from snippets.validation.timing_flush import flushes

HERE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("name", flushes(torch.empty(0)))
def test_a_flush_writes_only_where_it_says_so(name):
    filler = torch.ones(64, dtype=torch.int32, device=HERE)
    flushes(filler)[name]()
    assert bool(filler.any()) != ("zero_()" in name)


@pytest.mark.skipif(HERE == "cuda", reason="there is one")
def test_without_a_gpu_it_says_what_it_expects(script):
    done = script("snippets.validation.timing_flush")
    assert (done.returncode, done.stdout) == (0, "an L2 flush: expected a GPU, found none\n")

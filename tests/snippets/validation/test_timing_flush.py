"""The flushes fill the cache with what they say; without a GPU the script says what it expects."""

import pytest
import torch

from snippets.validation import timing_flush
from snippets.validation.profiling_ncu import Counted
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


def test_a_line_says_what_was_counted_after_each_flush(monkeypatch):
    asked = []

    def ask(command, counters):
        asked.append(command)
        return [Counted("_stream", dict(zip(counters, (67e6, n * 1e6, 24e-6), strict=True))) for n in range(4)]

    monkeypatch.setattr(timing_flush, "ask", ask)
    lines = list(timing_flush.counted(torch.device(HERE)))
    assert asked[0][:2] == ["--cache-control", "none"]  # or ncu empties the cache itself
    assert lines[1].split() == ["zero_()", "67.00", "MB", "read", "1.00", "MB", "written", "24.00", "us"]
    assert len(lines) == len(flushes(torch.empty(0)))

"""What the rewrites of state promise, and what they give up."""

import pytest
import torch

from snippets.patterns.compiler_friendly_state import Counter, TableAfter


def test_a_row_longer_than_the_table_is_an_error_not_nonsense():
    with pytest.raises(RuntimeError):
        TableAfter(8, 4)(torch.randn(1, 5, 8))


def test_a_counter_that_nothing_reads_counts():
    module = Counter()
    module(torch.ones(2)), module(torch.ones(2))
    assert module.calls == 2

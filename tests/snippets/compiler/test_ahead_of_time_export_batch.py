"""What became of the batch."""

import pytest
import torch
from torch.export import Dim, export

from snippets.compiler.ahead_of_time_export_batch import ASKED, X, became, first, sizes
from snippets.compiler.ahead_of_time_export_sizes import AnyHeads, Heads


def test_the_first_program_has_the_batch_that_was_asked_for():
    assert sizes(first()) == ["1 to 64"]
    for batch in (1, 2, 64):
        assert first().module()(torch.ones(batch, 8)).shape == (batch, 8)
    assert sizes(export(AnyHeads(), (X,))) == ["only 4"]


def test_what_became_of_the_batch():
    """By what was asked: of four rows, of one row, and where the code says four."""
    expected = {
        "nothing": ("only 4", "only 1", "only 4"),
        "Dim('batch', min=1, max=64)": ("1 to 64", "refused", "refused"),
        "Dim.DYNAMIC": ("2 or more", "refused", "refused"),
        "Dim.AUTO": ("2 or more", "only 1", "only 4"),
        "mark_dynamic(x, 0)": ("any", "only 1", "refused"),
        "mark_dynamic(x, 0); x = x.half()": ("only 4", "only 1", "only 4"),
    }
    found = {
        asked: (
            became(AnyHeads(), prepared(X), shapes),
            became(AnyHeads(), prepared(X[:1]), shapes),
            became(Heads(), prepared(X), shapes),
        )
        for asked, (shapes, prepared) in ASKED.items()
    }
    assert found == expected


def test_a_program_of_one_size_refuses_another_where_it_is_called_from_python():
    program = export(AnyHeads(), (X[:1],), dynamic_shapes=({0: Dim.AUTO},)).module()
    with pytest.raises(AssertionError, match="Guard failed"):
        program(X)

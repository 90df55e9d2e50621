"""What the rewrites of Python structures promise."""

import torch

from snippets.patterns.compiler_friendly_structures import answer, exercise, positions_after, positions_before


def test_positions_begin_anew_at_each_offset_and_rows_may_be_empty():
    table = torch.arange(6.0)[:, None]
    offsets = torch.tensor([0, 2, 2, 6])
    found = positions_after(torch.zeros(6, 1), offsets, table)
    assert found.flatten().tolist() == [0, 1, 0, 1, 2, 3]
    torch.testing.assert_close(found, positions_before(torch.zeros(6, 1), offsets, table))


def test_the_answer_is_the_mean_over_real_tokens_whatever_stands_behind_them():
    x, lengths = torch.randn(3, 6, 4), torch.tensor([1, 4, 6])
    expected = exercise(x, lengths)
    x[0, 1:] = torch.nan
    torch.testing.assert_close(answer(x, lengths), expected)

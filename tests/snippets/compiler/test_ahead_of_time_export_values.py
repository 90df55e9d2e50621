"""What is written in its place computes the same."""

import pytest
import torch
from torch.export import export

from snippets.compiler.ahead_of_time_export_batch import X
from snippets.compiler.ahead_of_time_export_sizes import AnyHeads, Heads
from snippets.compiler.ahead_of_time_export_values import Branch, Cond, MeanOfAll, MeanOfSome, NumPy, Torch, Where


@pytest.mark.parametrize(
    ("before", "after"),
    [(Branch(), Where()), (Branch(), Cond()), (MeanOfSome(), MeanOfAll()), (Heads(), AnyHeads()), (NumPy(), Torch())],
    ids=lambda module: type(module).__name__,
)
def test_a_mend_computes_the_same(before, after):
    for x in (X, -X, X - 9):
        torch.testing.assert_close(after(x), before(x))
        torch.testing.assert_close(export(after, (X,)).module()(x), before(x))

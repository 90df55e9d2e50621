"""An even batch is taken, and no other."""

import pytest
import torch

from snippets.compiler.ahead_of_time_export_refused import REFUSED
from snippets.compiler.ahead_of_time_export_sizes import Pairs


def test_pairs_take_every_even_batch_in_range_and_no_other():
    program = REFUSED["pairs"][1].export().module()
    for batch in (4, 6, 64):
        torch.testing.assert_close(program(torch.ones(batch, 8)), Pairs()(torch.ones(batch, 8)))
    for batch in (3, 66):
        with pytest.raises(AssertionError, match="Guard failed"):
            program(torch.ones(batch, 8))

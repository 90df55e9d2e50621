"""What a pair returns is the same at every pass."""

import pytest
import torch

from snippets.patterns.compiler_friendly import TEN, rewrite
from snippets.patterns.compiler_friendly_pair import outputs


@pytest.mark.parametrize("name", TEN)
def test_a_second_pass_begins_anew(name):
    pair = rewrite(name)
    for one, again in zip(outputs(pair), outputs(pair), strict=True):
        for x, y in zip(one, again, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=0)

"""A window as a block mask and as data: the same keys."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import flex_attention

from snippets.patterns.attention_window import make_mask, make_window

CPU = torch.device("cpu")


@pytest.mark.parametrize("width", [1, 3, 130, 300])
def test_the_block_mask_is_the_mask(width: int) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 300, 16, dtype=torch.float64) for _ in range(3))
    mask = make_mask(300, width, CPU)
    assert mask.sum(1).tolist() == [min(query + 1, width) for query in range(300)]
    y = flex_attention(q, k, v, block_mask=make_window(300, width, CPU))
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(y, expected, rtol=1e-6, atol=1e-6)


def test_the_script_agrees_and_leaves_blocks_out(script) -> None:
    done = script("snippets.patterns.attention_window")
    assert not done.returncode, done.stderr
    apart, left_out = done.stdout.splitlines()
    assert float(apart.split()[-1]) < 1e-2
    assert int(left_out.split()[-1].rstrip("%")) > 30

"""Attention of new tokens is that of the whole row."""

import pytest
import torch
import torch.nn.functional as F

from snippets.patterns.attention_masks import seen
from snippets.patterns.attention_masks_agreement import inputs
from snippets.patterns.attention_masks_decode import continued, decode, heads_as_queries, with_room
from snippets.patterns.attention_masks_rules import after, causal, dense


@pytest.mark.parametrize("queries", [1, 3, 6])
def test_new_tokens_see_all_before_them(queries: int) -> None:
    expected = torch.ones(queries, 6, dtype=torch.bool).tril(6 - queries)
    assert torch.equal(seen(continued, queries, 6), expected)
    assert torch.equal(dense(after(6 - queries, causal), 1, queries, 6)[0, 0], expected)
    assert torch.equal(seen(decode, 1, 6), torch.ones(1, 6, dtype=torch.bool))


def test_a_token_at_a_time_is_the_whole_row_at_once() -> None:
    """Without a cache, with one that grows, and with one that has room for more."""
    torch.manual_seed(0)
    q, k, v = inputs(7, 7)
    whole = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    for at in range(7):
        here, past = slice(at, at + 1), slice(at + 1)
        filled = torch.tensor([at + 1, at + 1])
        torch.testing.assert_close(decode(q[:, :, here], k[:, :, past], v[:, :, past]), whole[:, :, here])
        torch.testing.assert_close(with_room(q[:, :, here], k, v, filled), whole[:, :, here])
    torch.testing.assert_close(continued(q[:, :, 4:], k, v), whole[:, :, 4:])


def test_grouped_heads_are_neighbours() -> None:
    torch.manual_seed(0)
    q, k, v = inputs(1, 9, heads=6, kv_heads=2)
    for head in range(6):
        alone = decode(q[:, head, None], k[:, head // 3, None], v[:, head // 3, None])
        torch.testing.assert_close(heads_as_queries(q, k, v)[:, head, None], alone)

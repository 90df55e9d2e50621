"""A rule is the same as a mask and as blocks, and no larger than it has to be."""

import pytest
import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import BlockMask

from snippets.patterns.attention_masks_agreement import inputs
from snippets.patterns.attention_masks_rules import blocks, causal, dense, documents, real_keys, window, with_mask


def test_a_window_counts_the_token_itself() -> None:
    assert dense(window(3), 1, 9, 9)[0, 0].sum(1).tolist() == [1, 2, 3, 3, 3, 3, 3, 3, 3]
    assert torch.equal(dense(window(9), 1, 9, 9), dense(causal, 1, 9, 9))


def test_documents_see_nothing_of_each_other_whatever_it_is() -> None:
    torch.manual_seed(0)
    document = torch.tensor([[0] * 3 + [1] * 5])
    q, k, v = (t[:1] for t in inputs(8, 8))
    mask = dense(documents(document), 1, 8, 8)
    before = with_mask(q, k, v, mask)
    k[:, :, :3], v[:, :, :3] = 1e3, -1e3
    assert torch.equal(with_mask(q, k, v, mask)[:, :, 3:], before[:, :, 3:])


def test_booleans_align_at_the_lower_right_in_a_compiled_graph() -> None:
    """The page's line. Does PyTorch compile `causal_lower_right`? Then the line goes."""
    q, k, v = inputs(3, 8)

    def attend(mask: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    def by_booleans() -> torch.Tensor:
        return attend(torch.arange(8) <= torch.arange(3)[:, None] + (8 - 3))

    expected = attend(causal_lower_right(3, 8))
    torch.testing.assert_close(torch.compile(by_booleans, backend="eager", fullgraph=True)(), expected)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(lambda: attend(causal_lower_right(3, 8)), backend="eager", fullgraph=True)()


def test_a_mask_is_as_small_as_its_rule() -> None:
    lengths, document = torch.tensor([3, 4, 5]), torch.zeros(3, 7, dtype=torch.int64)
    assert dense(causal, 3, 7, 7).shape == (1, 1, 7, 7)
    assert dense(real_keys(lengths), 3, 2, 7).shape == (3, 1, 1, 7)
    assert dense(documents(document), 3, 7, 7).shape == (3, 1, 7, 7)


def test_blocks_are_left_out() -> None:
    """Of 8 × 8 blocks of 128, the diagonal and what the window reaches before it."""

    def needed(mask: BlockMask) -> int:
        assert mask.full_kv_num_blocks is not None
        return int((mask.kv_num_blocks + mask.full_kv_num_blocks).sum())

    assert needed(blocks(causal, None, 1024, 1024)) == 36
    assert needed(blocks(window(129), None, 1024, 1024)) == 8 + 7
    document = torch.arange(1024)[None] // 256
    assert needed(blocks(documents(document), 1, 1024, 1024)) == 4 * 3

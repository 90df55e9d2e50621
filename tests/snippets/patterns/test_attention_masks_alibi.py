"""ALiBi's bias, and what rounding does to it."""

import pytest
import torch

from snippets.patterns.attention_masks_agreement import inputs
from snippets.patterns.attention_masks_alibi import alibi, alibi_bias, alibi_row, rounding, slopes
from snippets.patterns.attention_masks_rules import blocks, causal, dense, flex, formula, with_mask

pytestmark = pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")


def test_slopes_are_those_of_the_paper() -> None:
    assert slopes(8).tolist() == [2.0**-n for n in range(1, 9)]
    assert slopes(16)[0] == pytest.approx(2**-0.5)


def test_a_bias_of_one_row_differs_by_a_number_for_each_query() -> None:
    slope, mask = slopes(4).double(), torch.ones(6, 6, dtype=torch.bool)
    apart = alibi_row(slope, 6, torch.float64) - alibi_bias(slope, mask, torch.float64)
    torch.testing.assert_close(apart, apart[..., :1].expand_as(apart))


def test_rounded_to_bf16_the_row_is_wrong_and_the_square_is_not() -> None:
    torch.manual_seed(0)
    square, row = rounding(1024, torch.bfloat16)
    assert square < 1e-3 and row > 0.1


def test_a_line_of_keys_in_fp32_stands_beside_bf16() -> None:
    torch.manual_seed(0)
    q, k, v = (t.bfloat16() for t in inputs(1, 1024, heads=8, kv_heads=8))
    expected = formula(
        q.double(),
        k.double(),
        v.double(),
        torch.ones(1, 1024, dtype=torch.bool),
        alibi_row(slopes(8).double(), 1024, torch.float64),
    )

    def off(dtype: torch.dtype) -> torch.Tensor:
        return (with_mask(q, k, v, alibi_row(slopes(8), 1024, dtype)[None]) - expected).abs().max()

    assert off(torch.float32) < 0.03 < 0.3 < off(torch.bfloat16)


def test_what_flex_computes_is_not_rounded_first() -> None:
    """In bf16, FlexAttention is as near to float64 as the formula in bf16 with an exact bias."""
    torch.manual_seed(0)
    q, k, v = inputs(256, 256)
    mask, slope = dense(causal, 1, 256, 256), slopes(4)
    bias = alibi_bias(slope.double(), mask, torch.float64)
    rounded = [t.bfloat16() for t in (q, k, v)]
    exact = formula(*(t.double() for t in rounded), mask, bias.masked_fill(~mask, 0.0))
    found = flex(*rounded, blocks(causal, None, 256, 256), score_mod=alibi(slope))
    assert (found - exact).abs().max() < 0.03

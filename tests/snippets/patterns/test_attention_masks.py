"""Each way to say a rule is the formula, and what the page says of masks holds."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask

from snippets.patterns import attention_masks as page
from snippets.patterns.attention import Watch
from snippets.patterns.attention_masks import (
    after,
    alibi_bias,
    alibi_row,
    blocks,
    causal,
    comparisons,
    continued,
    decode,
    dense,
    documents,
    flex,
    formula,
    heads_as_queries,
    in_chunks,
    inputs,
    real_keys,
    rounding,
    seen,
    slopes,
    window,
    with_mask,
    with_room,
)
from tests.benchmarks.captures import sections

WRONG = {  # what the page shows as mistakes
    "window(7): 6 before the token",
    "bias with the other sign",
    "is_causal=True alone",
    "k and v by repeat()",
    "is_causal=True",
    "no mask",
}
pytestmark = pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")


def test_every_way_is_the_formula_and_every_mistake_is_not() -> None:
    torch.manual_seed(0)
    mistakes = set()
    for rule, expected, ways in comparisons():
        for way, result in ways.items():
            off = (result - expected).abs().max()
            assert (off > 1e-3) if way in WRONG else (off < 1e-12), (rule, way, off)
            mistakes |= {way} & WRONG
    assert mistakes == WRONG


# ---- alignment ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
@pytest.mark.parametrize("queries", [1, 3, 6])
def test_the_flag_is_aligned_at_the_upper_left(backend: SDPBackend, queries: int) -> None:
    with sdpa_kernel(backend):
        found = seen(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), queries, 6)
    assert torch.equal(found, torch.ones(queries, 6, dtype=torch.bool).tril())


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


# ---- rules ----------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("tokens", "width"), [(8, 8), (12, 4), (6, 1)])
def test_chunks_are_the_window_with_their_gradients(tokens: int, width: int) -> None:
    torch.manual_seed(0)
    leaves = [t.requires_grad_() for t in inputs(tokens, tokens)]
    incoming = torch.randn(leaves[0].shape).double()
    mask = dense(window(width), 1, tokens, tokens)
    results = []
    for output in (in_chunks(*leaves, width), formula(*leaves, mask)):
        results.append((output, *torch.autograd.grad(output, leaves, incoming)))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected)


def test_chunks_never_hold_a_square() -> None:
    q, k, v = (torch.zeros(1, 1, 4096, 8) for _ in range(3))
    with Watch() as watch:
        in_chunks(q, k, v, 64)
    assert watch.largest <= 4096 * 2 * 64 * torch.int64.itemsize  # while the mask is made


def test_grouped_heads_are_neighbours() -> None:
    torch.manual_seed(0)
    q, k, v = inputs(1, 9, heads=6, kv_heads=2)
    for head in range(6):
        alone = decode(q[:, head, None], k[:, head // 3, None], v[:, head // 3, None])
        torch.testing.assert_close(heads_as_queries(q, k, v)[:, head, None], alone)


# ---- ALiBi ----------------------------------------------------------------------------------------------------------


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
    found = flex(*rounded, blocks(causal, None, 256, 256), score_mod=page.alibi(slope))
    assert (found - exact).abs().max() < 0.03


# ---- refusals -------------------------------------------------------------------------------------------------------


def test_the_fused_kernel_of_a_cpu_applies_mask_and_flag_and_the_formula_refuses() -> None:
    torch.manual_seed(0)
    q, k, v = (t.float() for t in inputs(8, 8))
    padding = dense(real_keys(torch.tensor([5, 8])), 2, 8, 8)
    both = {"attn_mask": padding, "is_causal": True}
    expected = formula(q, k, v, padding & dense(causal, 1, 8, 8))
    assert page.verdict([SDPBackend.FLASH_ATTENTION], expected, q, k, v, **both) == ["right"]
    assert "is_causal" in page.verdict([SDPBackend.MATH], expected, q, k, v, **both)[0]


def test_a_verdict_tells_wrong_from_right() -> None:
    q, k, v = (t.float() for t in inputs(8, 8))
    expected = formula(q, k, v, dense(window(3), 1, 8, 8))
    assert page.verdict([SDPBackend.MATH], expected, q, k, v, is_causal=True) == ["wrong"]


def test_the_script_prints_what_the_page_shows(script) -> None:
    printed = sections(script(page.__name__, "cpu").stdout)
    assert list(printed) == ["alignment", "rules", "agreement", "rounding", "refuses"]
    assert " or " not in printed["rules"]

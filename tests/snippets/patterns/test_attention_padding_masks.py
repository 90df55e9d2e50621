"""Masks and block masks look where they should, and what the page says of them holds."""

import math

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention.flex_attention import flex_attention

from snippets.patterns.attention_padding_masks import flex, formula, make_blocks, make_mask, real_tokens, with_mask
from snippets.patterns.attention_padding_varlen import make_packing, pack
from snippets.validation.equivalence import check
from tests.benchmarks.patterns import attention_padding as case
from tests.snippets.patterns.test_attention_padding import DEVICE, LENGTHS, ON_DEVICE, PACKING, TOKENS, tensors


@pytest.mark.parametrize("causal", [True, False])
def test_flex_is_each_row_alone_and_gives_zero_at_padding(causal: bool) -> None:
    """Forward only: FlexAttention has no backward on a CPU. The case checks it on the GPU, compiled."""
    given = tensors()
    output = flex(*given[:3], make_blocks(ON_DEVICE, TOKENS, causal))
    exact = case.in_float64(given[:3], given[3], LENGTHS, causal, training=False)
    plain = pack(formula(*given[:3], make_mask(ON_DEVICE, TOKENS, causal)), PACKING)
    check({"output": pack(output, PACKING)}, {"output": plain}, exact)
    assert not output[~real_tokens(ON_DEVICE, TOKENS)].any()


def test_other_lengths_compile_nothing_anew() -> None:
    counter = CompileCounterWithBackend("eager")
    attend = torch.compile(flex_attention, backend=counter, dynamic=False)
    q, k, v = torch.randn(3, 3, 256, 2, 16)
    for lengths in (torch.tensor([3, 200, 256]), torch.tensor([256, 1, 77])):
        packing = make_packing(lengths, 256, torch.device("cpu"))
        result = flex(q, k, v, make_blocks(lengths, 256, True), attend)
        expected = with_mask(q, k, v, make_mask(lengths, 256, True))
        torch.testing.assert_close(pack(result, packing), pack(expected, packing))
    assert counter.frame_count == 1


def test_a_block_mask_skips_padding_and_the_future() -> None:
    blocks = make_blocks(torch.tensor([130, 512]), 512, causal=True)
    needed = [(some + whole).sum() for some, whole in zip(blocks.kv_num_blocks, blocks.full_kv_num_blocks, strict=True)]
    assert needed == [1 + 2, 1 + 2 + 3 + 4]


def test_a_query_that_may_look_nowhere_gets_zero_from_sdpa_and_nan_from_the_formula() -> None:
    """Causal with padding in front: the padding's queries have no key."""
    in_front = real_tokens(torch.tensor([2, 4]), 4).flip(1)
    mask = in_front[:, None, None, :] & torch.ones(4, 4, dtype=torch.bool).tril()
    q, k, v = torch.randn(3, 2, 4, 1, 8)
    assert not with_mask(q, k, v, mask)[~in_front].any()
    assert formula(q, k, v, mask)[~in_front].isnan().all()
    assert formula(q, k, v, mask)[in_front].isfinite().all()


def test_a_mask_does_not_keep_nan_at_padding_out() -> None:
    """Zero times NaN is NaN."""
    q, k, v = torch.randn(3, 1, 4, 1, 8, device=DEVICE)
    v[0, 3] = math.nan
    mask = make_mask(torch.tensor([3], device=DEVICE), 4, causal=False)
    assert formula(q, k, v, mask)[0, :3].isnan().any()

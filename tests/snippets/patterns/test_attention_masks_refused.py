"""SDPA refuses what the page says, and a verdict tells wrong from right."""

import torch
from torch.nn.attention import SDPBackend

from snippets.patterns import attention_masks_refused
from snippets.patterns.attention_masks_agreement import inputs
from snippets.patterns.attention_masks_rules import causal, dense, formula, real_keys, window


def test_the_fused_kernel_of_a_cpu_applies_mask_and_flag_and_the_formula_refuses() -> None:
    torch.manual_seed(0)
    q, k, v = (t.float() for t in inputs(8, 8))
    padding = dense(real_keys(torch.tensor([5, 8])), 2, 8, 8)
    both = {"attn_mask": padding, "is_causal": True}
    expected = formula(q, k, v, padding & dense(causal, 1, 8, 8))
    assert attention_masks_refused.verdict([SDPBackend.FLASH_ATTENTION], expected, q, k, v, **both) == ["right"]
    assert "is_causal" in attention_masks_refused.verdict([SDPBackend.MATH], expected, q, k, v, **both)[0]


def test_a_verdict_tells_wrong_from_right() -> None:
    q, k, v = (t.float() for t in inputs(8, 8))
    expected = formula(q, k, v, dense(window(3), 1, 8, 8))
    assert attention_masks_refused.verdict([SDPBackend.MATH], expected, q, k, v, is_causal=True) == ["wrong"]

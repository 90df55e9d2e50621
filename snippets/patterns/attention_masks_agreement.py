"""Each way to say a rule, and a mistake, compared with the formula in float64."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from snippets.patterns.attention_masks_alibi import alibi, alibi_bias, alibi_row, slopes
from snippets.patterns.attention_masks_decode import grouped, heads_as_queries
from snippets.patterns.attention_masks_local import each_alone, in_chunks
from snippets.patterns.attention_masks_rules import (
    blocks,
    causal,
    dense,
    documents,
    flex,
    formula,
    real_keys,
    window,
    with_mask,
)


def inputs(queries: int, keys: int, heads: int = 4, kv_heads: int = 4) -> list[Tensor]:
    """q, k and v of two rows, heads of 16, in float64."""
    shapes = ((heads, queries), (kv_heads, keys), (kv_heads, keys))
    return [torch.randn(2, *shape, 16).double() for shape in shapes]


Comparison = tuple[str, Tensor, dict[str, Tensor]]  # a rule; the formula's result; and that of each way, or mistake
TOKENS, PADDED = 24, torch.tensor([24, 9])


# --8<-- [start:compared]
def of_window(qkv: list[Tensor], width: int = 6) -> Comparison:
    mask, wider = (dense(window(w), 1, TOKENS, TOKENS) for w in (width, width + 1))
    ways = {
        "boolean mask": with_mask(*qkv, mask),
        "FlexAttention": flex(*qkv, blocks(window(width), None, TOKENS, TOKENS)),
        "in_chunks": in_chunks(*qkv, width),
        f"window({width + 1}): {width} before the token": with_mask(*qkv, wider),
    }
    return f"window({width})", formula(*qkv, mask), ways


# --8<-- [end:compared]


def of_alibi(qkv: list[Tensor]) -> Comparison:
    mask, slope = dense(causal, 1, TOKENS, TOKENS), slopes(4).double()
    exact = -slope[:, None, None] * (torch.arange(TOKENS)[:, None] - torch.arange(TOKENS))
    row = alibi_row(slope, TOKENS, exact.dtype).masked_fill(~mask, -math.inf)
    ways = {
        "bias of all pairs": with_mask(*qkv, alibi_bias(slope, mask, exact.dtype)),
        "FlexAttention, score_mod": flex(*qkv, blocks(causal, None, TOKENS, TOKENS), score_mod=alibi(slope)),
        "bias of one row": with_mask(*qkv, row),
        "bias with the other sign": with_mask(*qkv, alibi_bias(-slope, mask, exact.dtype)),
    }
    return "ALiBi, causal", formula(*qkv, mask, exact), ways


def of_documents(qkv: list[Tensor]) -> Comparison:
    lengths = [7, 1, 16]
    rule = documents(torch.arange(3).repeat_interleave(torch.tensor(lengths)).expand(2, -1))
    mask = dense(rule, 2, TOKENS, TOKENS)
    ways = {
        "boolean mask": with_mask(*qkv, mask),
        "FlexAttention": flex(*qkv, blocks(rule, 2, TOKENS, TOKENS)),
        "each_alone": each_alone(*qkv, lengths),
        "is_causal=True alone": F.scaled_dot_product_attention(*qkv, is_causal=True),
    }
    return "documents", formula(*qkv, mask), ways


def of_grouped_queries() -> Comparison:
    q, k, v = qkv = inputs(TOKENS, TOKENS, heads=4, kv_heads=2)
    repeated = (t.repeat(1, 2, 1, 1) for t in (k, v))
    ways = {
        "enable_gqa=True": grouped(*qkv, is_causal=True),
        "FlexAttention": flex(*qkv, blocks(causal, None, TOKENS, TOKENS)),
        "k and v by repeat()": F.scaled_dot_product_attention(q, *repeated, is_causal=True),
    }
    return "grouped queries, causal", formula(*qkv, dense(causal, 1, TOKENS, TOKENS)), ways


def of_cross_attention() -> Comparison:
    qkv, rule = inputs(5, TOKENS), real_keys(PADDED)
    mask = dense(rule, 2, 5, TOKENS)
    ways = {
        "boolean mask, a row of keys": with_mask(*qkv, mask),
        "FlexAttention": flex(*qkv, blocks(rule, 2, 5, TOKENS)),
        "is_causal=True": F.scaled_dot_product_attention(*qkv, is_causal=True),
    }
    return "cross-attention, padded keys", formula(*qkv, mask), ways


def of_decode() -> Comparison:
    qkv, rule = inputs(1, TOKENS, heads=4, kv_heads=2), real_keys(PADDED)
    mask = dense(rule, 2, 1, TOKENS)
    ways = {
        "boolean mask, enable_gqa=True": grouped(*qkv, attn_mask=mask),
        "heads_as_queries": heads_as_queries(*qkv, mask),
        "FlexAttention": flex(*qkv, blocks(rule, 2, 1, TOKENS)),
        "is_causal=True": grouped(*qkv, is_causal=True),
        "no mask": grouped(*qkv),
    }
    return "decode, grouped, room in the cache", formula(*qkv, mask), ways


def comparisons() -> list[Comparison]:
    """Each rule, by the formula and in each way to say the same, or something else."""
    qkv = inputs(TOKENS, TOKENS)
    alike = [of_window(qkv), of_alibi(qkv), of_documents(qkv)]
    return [*alike, of_grouped_queries(), of_cross_attention(), of_decode()]


def show_agreement() -> None:
    for rule, expected, ways in comparisons():
        print(rule)
        for way, result in ways.items():
            print(f"  {way:<36}{said(result - expected)}")


def said(difference: Tensor) -> str:
    """Its order of magnitude, or that it is no more than rounding in float64."""
    size = difference.abs().max().item()
    return "< 1e-12" if size < 1e-12 else f"{10.0 ** round(math.log10(size)):.0e}"

"""ALiBi: a number added to each score, and what rounding it to bf16 does."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from snippets.patterns.attention_masks_rules import formula


# --8<-- [start:alibi]
def slopes(heads: int, device: torch.device | str = "cpu") -> Tensor:
    """Of ALiBi, in float32, for a power of two of heads."""
    return 2.0 ** (-8 / heads * torch.arange(1, heads + 1, device=device))


def alibi(slope: Tensor) -> Callable[..., Tensor]:
    """For FlexAttention's `score_mod`: the score falls with the distance between query and key."""
    return lambda score, row, head, query, key: score - slope[head] * (query - key)


def alibi_bias(slope: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """For SDPA's `attn_mask`: (heads, queries, keys), and minus infinity where the mask is False."""
    query, key = (torch.arange(n, device=slope.device) for n in mask.shape[-2:])
    bias = -slope[:, None, None] * (query[:, None] - key)
    return bias.to(dtype).masked_fill(~mask, -math.inf)


# --8<-- [end:alibi]


# --8<-- [start:row]
def alibi_row(slope: Tensor, keys: int, dtype: torch.dtype) -> Tensor:
    """The same up to a number that all scores of a query share, which softmax cancels: (heads, 1, keys)."""
    return (slope[:, None, None] * torch.arange(keys, device=slope.device)).to(dtype)


# --8<-- [end:row]


# --8<-- [start:rounding]
def rounding(tokens: int, dtype: torch.dtype) -> tuple[float, float]:
    """How far attention of the last query is off if only the bias is rounded: of all pairs, and of one row."""
    slope, mask = slopes(8)[:1].double(), torch.ones(1, tokens, dtype=torch.bool)
    q, (k, v) = torch.randn(1, 1, 1, 64).double(), torch.randn(2, 1, 1, tokens, 64).double()
    exact = -slope[:, None, None] * (tokens - 1 - torch.arange(tokens))
    expected = formula(q, k, v, mask, exact)
    biases = exact.to(dtype), alibi_row(slope, tokens, dtype)
    square, row = ((formula(q, k, v, mask, b.double()) - expected).abs().max().item() for b in biases)
    return square, row


# --8<-- [end:rounding]

"""Attention over a padded batch: with a mask, without one, by FlexAttention, and written out."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

# Everywhere q, k and v are (rows, tokens, heads, size), as a projection leaves them, or (all tokens, heads, size)
# where the rows are packed. `lengths` says how many tokens of each row are real: the first ones.


# --8<-- [start:real]
def real_tokens(lengths: Tensor, tokens: int) -> Tensor:
    """True where a token is real: (rows, tokens)."""
    return torch.arange(tokens, device=lengths.device) < lengths[:, None]


# --8<-- [end:real]


# --8<-- [start:mask]
def make_mask(lengths: Tensor, tokens: int, causal: bool) -> Tensor:
    """True where a query may look: (rows, 1, 1, tokens), or (rows, 1, tokens, tokens) where attention is causal."""
    keys = real_tokens(lengths, tokens)[:, None, None, :]
    if not causal:
        return keys
    return keys & torch.ones(tokens, tokens, dtype=torch.bool, device=lengths.device).tril()


def with_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)


# --8<-- [end:mask]


# --8<-- [start:float]
def as_float(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to the scores: 0 where a query may look, minus infinity elsewhere."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -math.inf)


# --8<-- [end:float]


# --8<-- [start:causal]
def causal_only(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """No mask at all: right if the padding is behind the real tokens, and the loss leaves it out."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


# --8<-- [end:causal]


# --8<-- [start:flex]
def make_blocks(lengths: Tensor, tokens: int, causal: bool, build: Callable = create_block_mask) -> BlockMask:
    """Which blocks of 128 × 128 scores are needed, once for a batch. A padding query looks nowhere, and gets zero."""

    def may_look(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        real = (query < lengths[row]) & (key < lengths[row])
        return real & (key <= query) if causal else real

    return build(may_look, len(lengths), None, tokens, tokens, device=lengths.device)


def flex(q: Tensor, k: Tensor, v: Tensor, blocks: BlockMask, attend: Callable = flex_attention) -> Tensor:
    """`attend` is torch.compile(flex_attention): without it the formula runs, with all scores in memory."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return attend(q, k, v, block_mask=blocks).transpose(1, 2)


# --8<-- [end:flex]


# --8<-- [start:formula]
def formula(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """With the scores in memory, as it is often written."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return (scores.masked_fill(~mask, -math.inf).softmax(-1) @ v).transpose(1, 2)


# --8<-- [end:formula]

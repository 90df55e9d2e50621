"""Attention of new tokens over cached keys, and of more query heads than heads of keys."""

import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from snippets.patterns.attention_masks_rules import dense, real_keys, with_mask


# --8<-- [start:decode]
def decode(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One new token, whose key is the last: it sees all keys, so there is nothing to mask."""
    return F.scaled_dot_product_attention(q, k, v)


def continued(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Some new tokens, whose keys are the last: causal, aligned at the lower right."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(q.shape[2], k.shape[2]))


def with_room(q: Tensor, k: Tensor, v: Tensor, filled: Tensor) -> Tensor:
    """One new token, and a cache with room for more: `filled` says how many keys of each row are real."""
    return with_mask(q, k, v, dense(real_keys(filled), len(q), 1, k.shape[2], q.device))


# --8<-- [end:decode]


# --8<-- [start:grouped]
def grouped(q: Tensor, k: Tensor, v: Tensor, **how: object) -> Tensor:
    """Fewer heads of k and v than of q: query head h reads head h // group."""
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **how)


def heads_as_queries(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """The same for one query: query heads that read one head of k and v stand there as its queries."""
    group = q.shape[1] // k.shape[1]
    result = F.scaled_dot_product_attention(q.squeeze(2).unflatten(1, (-1, group)), k, v, attn_mask=mask)
    return result.flatten(1, 2).unsqueeze(2)


# --8<-- [end:grouped]

"""Which keys a query sees: rules as functions, and each way to hand one to attention."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

# Everywhere q is (rows, heads, queries, size), and k and v are (rows, heads, keys, size), or have fewer heads.
Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # row, head, query and key: does the query see the key?
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


# --8<-- [start:rules]
def causal(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return key <= query


def window(width: int) -> Rule:
    """The token itself and the width - 1 before it."""
    return lambda row, head, query, key: (key <= query) & (query - key < width)


def documents(document: Tensor) -> Rule:
    """Several documents in a row, causal: `document` is (rows, tokens), and says which one each token belongs to."""
    return lambda row, head, query, key: (document[row, query] == document[row, key]) & (key <= query)


def real_keys(lengths: Tensor) -> Rule:
    """Cross-attention: all queries see the first `lengths` keys of their row."""
    return lambda row, head, query, key: key < lengths[row]


def after(cached: int | Tensor, rule: Rule) -> Rule:
    """The same rule for queries that come after `cached` keys."""
    return lambda row, head, query, key: rule(row, head, query + cached, key)


# --8<-- [end:rules]


# --8<-- [start:dense]
def dense(rule: Rule, rows: int, queries: int, keys: int, device: torch.device | str = "cpu") -> Tensor:
    """The rule as a boolean mask, True where a query sees a key; a size stays 1 where the rule does not ask for it."""
    row, head, query, key = (torch.arange(n, device=device) for n in (rows, 1, queries, keys))
    return rule(row[:, None, None, None], head[:, None, None], query[:, None], key[None, None, None])


def with_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


# --8<-- [end:dense]


# --8<-- [start:blocks]
def blocks(rule: Rule, rows: int | None, queries: int, keys: int, device: torch.device | str = "cpu") -> BlockMask:
    """The rule as FlexAttention takes it; `rows` is None where all rows follow the same rule."""
    return create_block_mask(rule, rows, None, queries, keys, device=device)


def flex(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, attend: Callable = flex_attention, **how: object) -> Tensor:
    """`attend` is torch.compile(flex_attention): without it the formula runs, with all scores in memory."""
    return attend(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1], **how)


# --8<-- [end:blocks]


# --8<-- [start:formula]
def formula(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, bias: Tensor | None = None) -> Tensor:
    """What all of this is checked against. Query head h reads head h // group of k and v."""
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if bias is not None:
        scores = scores + bias
    return scores.masked_fill(~mask, -math.inf).softmax(-1) @ v


# --8<-- [end:formula]

"""Attention where a rule is local: a window in chunks, and documents one by one."""

import torch
import torch.nn.functional as F
from torch import Tensor


# --8<-- [start:chunks]
def in_chunks(q: Tensor, k: Tensor, v: Tensor, width: int) -> Tensor:
    """A window of `width`: chunks of as many queries, each with its keys and those of the chunk before.

    The mask has tokens × 2 width places instead of tokens². Tokens are a multiple of the width.
    """
    rows, heads, tokens, _ = q.shape
    chunks = tokens // width
    query = torch.arange(tokens, device=q.device).view(chunks, width, 1)
    key = torch.arange(-width, width, device=q.device) + width * torch.arange(chunks, device=q.device)[:, None, None]
    mask = (key >= 0) & (key <= query) & (query - key < width)  # (chunks, width, 2 width)
    q = q.reshape(rows * heads, chunks, width, -1)
    k, v = (F.pad(t, (0, 0, width, 0)).unfold(2, 2 * width, width).transpose(-2, -1).flatten(0, 1) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).reshape(rows, heads, tokens, -1)


# --8<-- [end:chunks]


# --8<-- [start:alone]
def each_alone(q: Tensor, k: Tensor, v: Tensor, lengths: list[int]) -> Tensor:
    """Documents in a row, one call for each."""
    parts = zip(*(t.split(lengths, 2) for t in (q, k, v)), strict=True)
    return torch.cat([F.scaled_dot_product_attention(*part, is_causal=True) for part in parts], 2)


# --8<-- [end:alone]

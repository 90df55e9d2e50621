"""Rotary embedding of queries and keys, at several levels."""

import torch
from torch import Tensor

from snippets.patterns.levels import Shape


# --8<-- [start:rotary]
def rotate_half(t: Tensor) -> Tensor:
    first, second = t.chunk(2, -1)
    return torch.cat((-second, first), -1)


def rotary_written(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def rotated(t: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = t.chunk(2, -1)
    return torch.cat((torch.addcmul(first * cos, second, sin, value=-1), torch.addcmul(second * cos, first, sin)), -1)


def rotary_native(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    half = q.shape[-1] // 2
    cos, sin = cos[..., :half].unsqueeze(1), sin[..., :half].unsqueeze(1)
    return rotated(q, cos, sin), rotated(k, cos, sin)


# --8<-- [end:rotary]


def heads(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """Queries and keys as a projection leaves them, (batch, tokens, heads, head_dim), seen transposed; and tables."""
    batch, tokens, own, shared, head_dim = shape
    q, k = (torch.randn(batch, tokens, n, head_dim, device=device).to(dtype).transpose(1, 2) for n in (own, shared))
    frequencies = 10000.0 ** (-torch.arange(0, head_dim, 2, device=device) / head_dim)
    angles = torch.arange(1000, 1000 + tokens, device=device)[:, None] * frequencies  # at place 0 nothing is rotated
    cos, sin = (torch.cat((t, t), -1)[None].to(dtype) for t in (angles.cos(), angles.sin()))
    return {"q": q, "k": k, "cos": cos, "sin": sin}

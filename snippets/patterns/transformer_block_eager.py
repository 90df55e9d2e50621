"""A transformer block assembled from parts, each as first written or as PyTorch has it."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from snippets.patterns.levels import Function

HEAD = 128


# --8<-- [start:block]
class Parts(NamedTuple):
    """What a block is made of, beside two products that are the same everywhere.

    Attributes:
        norm: (x, weight) -> normed.
        add_norm: (x, residual, weight) -> the norm of their sum, and the sum.
        project: (x, weight) -> q, k and v, each (batch, heads, tokens, 128).
        rotate: (q, k, cos, sin) -> q and k.
        attend: (q, k, v) -> mixed, causal.
        gated: (x, weight) -> hidden; the weight is that of the gate, and below it that of the other half.
    """

    norm: Callable[[Tensor, Tensor], Tensor]
    add_norm: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    project: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
    rotate: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    gated: Callable[[Tensor, Tensor], Tensor]


def assembled(parts: Parts) -> Function:
    """The block: x (batch, tokens, width) to the same shape, as in Llama."""
    norm, add_norm, project, rotate, attend, gated = parts

    def block(
        x: Tensor,
        norm_1: Tensor,
        qkv: Tensor,
        out: Tensor,
        norm_2: Tensor,
        gate_up: Tensor,
        down: Tensor,
        cos: Tensor,
        sin: Tensor,
    ) -> Tensor:
        q, k, v = project(norm(x, norm_1), qkv)
        q, k = rotate(q, k, cos, sin)
        mixed = F.linear(attend(q, k, v).transpose(1, 2).flatten(2), out)
        normed, h = add_norm(mixed, x, norm_2)
        return h + F.linear(gated(normed, gate_up), down)

    return block


# --8<-- [end:block]


# --8<-- [start:written]
def norm_written(x: Tensor, weight: Tensor) -> Tensor:
    mean_square = x.float().pow(2).mean(-1, keepdim=True)
    return weight * (x.float() * torch.rsqrt(mean_square + 1e-5)).to(x.dtype)


def add_norm_written(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    h = x + residual
    return norm_written(h, weight), h


def project_written(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = weight.chunk(3)
    return (
        F.linear(x, q).unflatten(-1, (-1, 128)).transpose(1, 2),
        F.linear(x, k).unflatten(-1, (-1, 128)).transpose(1, 2),
        F.linear(x, v).unflatten(-1, (-1, 128)).transpose(1, 2),
    )


def rotate_half(t: Tensor) -> Tensor:
    first, second = t.chunk(2, -1)
    return torch.cat((-second, first), -1)


def rotate_written(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = cos[:, None], sin[:, None]
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def attend_written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) / 128**0.5
    future = torch.ones(scores.shape[-2], scores.shape[-1], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(-1) @ v


def gated_written(x: Tensor, weight: Tensor) -> Tensor:
    gate, up = weight.chunk(2)
    gate = F.linear(x, gate)
    return gate * torch.sigmoid(gate) * F.linear(x, up)


def written() -> Function:
    return assembled(
        Parts(norm_written, add_norm_written, project_written, rotate_written, attend_written, gated_written)
    )


# --8<-- [end:written]


# --8<-- [start:native]
def norm_native(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, 1e-5)


def add_norm_native(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    h = x + residual
    return norm_native(h, weight), h


def project_native(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = F.linear(x, weight).unflatten(-1, (3, -1, 128)).permute(2, 0, 3, 1, 4).unbind()
    return q, k, v


def attend_native(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def gated_native(x: Tensor, weight: Tensor) -> Tensor:
    gate, up = F.linear(x, weight).chunk(2, -1)
    return F.silu(gate) * up


def native() -> Function:
    """PyTorch has no rotation: that part stays as it is written."""
    return assembled(Parts(norm_native, add_norm_native, project_native, rotate_written, attend_native, gated_native))


# --8<-- [end:native]

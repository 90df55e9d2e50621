"""Causal attention, from the formula to one kernel: what each step removes.

Run `python -m snippets.patterns.attention` to see, for the machine at hand, what each version makes in memory.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from snippets.patterns.attention_watch import Watch


class Weights(NamedTuple):
    """Of one attention layer: each (width, width), and q, k and v once more as one (3 width, width)."""

    q: Tensor
    k: Tensor
    v: Tensor
    qkv: Tensor
    out: Tensor
    heads: int


def make_weights(width: int, heads: int, device: torch.device, dtype: torch.dtype) -> Weights:
    """Random weights that keep the scale of their input."""
    q, k, v, out = (torch.randn(width, width, device=device) / math.sqrt(width) for _ in range(4))
    qkv = torch.cat([q, k, v])
    return Weights(*(weight.to(dtype) for weight in (q, k, v, qkv, out)), heads)


def split(x: Tensor, heads: int) -> Tensor:
    """(batch, tokens, width) as (batch, heads, tokens, width / heads): a view."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    """The way back; a copy, unless the memory already lies in that order."""
    return x.transpose(1, 2).flatten(2)


# --8<-- [start:explicit]
def explicit(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(size)) v, where a token sees only the past: the formula as it is written."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # (batch, heads, tokens, tokens)
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future, -math.inf).softmax(-1) @ v


# --8<-- [end:explicit]


# --8<-- [start:naive]
def naive(x: Tensor, w: Weights) -> Tensor:
    q, k, v = (split(F.linear(x, weight), w.heads) for weight in (w.q, w.k, w.v))
    return F.linear(merge(explicit(q, k, v)), w.out)


# --8<-- [end:naive]


# --8<-- [start:fused-qkv]
def fused_qkv(x: Tensor, w: Weights) -> Tensor:
    q, k, v = (split(each, w.heads) for each in F.linear(x, w.qkv).chunk(3, -1))
    return F.linear(merge(explicit(q, k, v)), w.out)


# --8<-- [end:fused-qkv]


# --8<-- [start:sdpa]
def sdpa(x: Tensor, w: Weights) -> Tensor:
    q, k, v = (split(each, w.heads) for each in F.linear(x, w.qkv).chunk(3, -1))
    return F.linear(merge(F.scaled_dot_product_attention(q, k, v, is_causal=True)), w.out)


# --8<-- [end:sdpa]


# --8<-- [start:mask]
def sdpa_with_mask(x: Tensor, w: Weights) -> Tensor:
    """The same function, but the mask is data: the kernel cannot know that it is causal."""
    q, k, v = (split(each, w.heads) for each in F.linear(x, w.qkv).chunk(3, -1))
    past = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
    return F.linear(merge(F.scaled_dot_product_attention(q, k, v, attn_mask=past)), w.out)


# --8<-- [end:mask]


# --8<-- [start:tiled]
def one_pass(q: Tensor, k: Tensor, v: Tensor, tile: int) -> Tensor:
    """Attention that never holds more than tokens × tile scores: a running maximum and a running sum."""
    tokens = q.shape[-2]
    q = q / math.sqrt(q.shape[-1])
    row = torch.arange(tokens, device=q.device)[:, None]
    largest = torch.full((*q.shape[:-1], 1), -math.inf, device=q.device)
    total = torch.zeros_like(largest)
    mixed = torch.zeros(q.shape, device=q.device)
    for start in range(0, tokens, tile):
        here = slice(start, start + tile)
        scores = (q @ k[..., here, :].transpose(-2, -1)).masked_fill_(row < row[here].T, -math.inf)
        higher = torch.maximum(largest, scores.amax(-1, keepdim=True))
        weights = torch.exp(scores - higher)
        shrink = torch.exp(largest - higher)  # what was summed so far, on the new scale
        total = total * shrink + weights.sum(-1, keepdim=True)
        mixed = mixed * shrink + weights.to(v.dtype) @ v[..., here, :]
        largest = higher
    return (mixed / total).to(v.dtype)


def tiled(x: Tensor, w: Weights, tile: int = 256) -> Tensor:
    q, k, v = (split(each, w.heads) for each in F.linear(x, w.qkv).chunk(3, -1))
    return F.linear(merge(one_pass(q, k, v, tile)), w.out)


# --8<-- [end:tiled]


VERSIONS: dict[str, Callable[[Tensor, Weights], Tensor]] = {
    "naive": naive,
    "fused-qkv": fused_qkv,
    "tiled": tiled,
    "sdpa": sdpa,
    "sdpa-mask": sdpa_with_mask,
}


def main() -> None:
    """Print, for two lengths, how many ops each version runs and the largest tensor that it makes."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    weights = make_weights(512, 4, device, dtype)
    for tokens in (512, 2048):
        x = torch.randn(1, tokens, 512, device=device).to(dtype)
        print(f"{tokens} tokens, 4 heads of 128; the input is {x.nbytes / 2**20:.1f} MiB")
        for name, version in VERSIONS.items():
            with Watch() as watch:
                version(x, weights)
            print(f"  {name:<10}{watch.made:>3} ops, largest {watch.largest / 2**20:>6.1f} MiB   {watch.attention}")


if __name__ == "__main__":
    main()

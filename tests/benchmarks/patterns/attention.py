"""Causal attention as a layer: from the formula to one kernel, as the sequence grows."""

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from snippets.patterns import attention
from snippets.patterns.attention import Weights, make_weights, merge, split
from tests.benchmarks import wrong
from tests.benchmarks.bounds import bound, ceiling, gpu
from tests.benchmarks.case import Case, Point, Results, Variant, Workload

WHERE_SCORES_DO_NOT_FIT = 65536  # 16 heads of 65536² bf16 scores are 128 GiB, and softmax needs them twice
CHUNK = 2048  # queries at a time in the float64 reference


def points(device: torch.device) -> Iterator[Point]:
    """One sequence, heads of 128. The naive version is tried once where it cannot fit: that it fails is a result."""
    if device.type == "cpu":
        for tokens in (256, 1024):
            yield Point({"tokens": tokens, "width": 512, "heads": 4}, "float32", modes=("calls",))
        return
    modes = {256: ("device", "calls"), 1024: ("device",), 4096: ("device",), 16384: ("device",)}
    for tokens, how in modes.items():
        name = f"{tokens // 1024}k tokens" if tokens > 256 else "256 tokens"
        yield Point({"tokens": tokens, "width": 2048, "heads": 16}, "bfloat16", modes=how, name=name)
    long = {"tokens": 16384, "width": 2048, "heads": 16}
    yield Point(long, "bfloat16", modes=("burst", "sustained"), variants=("naive", "sdpa"))
    longest = long | {"tokens": WHERE_SCORES_DO_NOT_FIT}
    yield Point(longest, "bfloat16", variants=("naive", "tiled", "sdpa"), name="64k tokens")


def prepare(point: Point, device: torch.device) -> Workload:
    """One input (1, tokens, width) and one set of weights, shared by all variants."""
    tokens, width, heads = point.shape.values()
    dtype = getattr(torch, point.dtype)
    weights = make_weights(width, heads, device, dtype)
    x = torch.randn(1, tokens, width, device=device).to(dtype)

    def wrongly(attend: Callable[..., Tensor]) -> Callable[[Results], Results]:
        def spoilt(baseline: Results) -> Results:
            q, k, v = (split(each, heads) for each in F.linear(x, weights.qkv).chunk(3, -1))
            return {"output": F.linear(merge(attend(q, k, v)), weights.out)}

        return spoilt

    calls = {
        "naive": lambda: partial(attention.naive, x, weights),
        "fused-qkv": lambda: partial(attention.fused_qkv, x, weights),
        # at the longest sequence smaller tiles would be more launches than the GPU's queue holds
        "tiled": lambda: partial(attention.tiled, x, weights, max(2048, tokens // 16)),
        "sdpa": lambda: partial(attention.sdpa, x, weights),
        "sdpa-mask": lambda: partial(attention.sdpa_with_mask, x, weights),
        "compile": lambda: partial(torch.compile(attention.sdpa, dynamic=False), x, weights),
        "compile-naive": lambda: partial(torch.compile(attention.naive, dynamic=False), x, weights),
    }
    return Workload(
        variants={name: Variant(build) for name, build in calls.items()},
        # where the naive version does not fit, the bound comes from the one that needs no whole score matrix
        baseline="tiled" if tokens >= WHERE_SCORES_DO_NOT_FIT else "naive",
        reference=lambda: {"output": in_float64(x, weights)},
        bytes_read=(x.numel() + 4 * width**2) * dtype.itemsize,
        bytes_written=x.numel() * dtype.itemsize,
        # four projections; q k^T and weights v over the causal half
        flops=8 * tokens * width**2 + 2 * tokens**2 * width,
        wrong={name: wrongly(attend) for name, attend in WRONG.items()},
    )


def in_float64(x: Tensor, weights: Weights) -> Tensor:
    """The layer in float64, one head and one chunk of queries at a time, so that its scores fit into memory."""
    exact = [weight.double() for weight in weights[:5]]
    q, k, v = (split(F.linear(x.double(), weight), weights.heads) for weight in exact[:3])
    mixed = torch.empty_like(q)
    for head in range(weights.heads):
        for start in range(0, x.shape[1], CHUNK):
            end = min(start + CHUNK, x.shape[1])
            scores = q[0, head, start:end] @ k[0, head, :end].T / math.sqrt(q.shape[-1])
            scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(1 + start), -math.inf)
            mixed[0, head, start:end] = scores.softmax(-1) @ v[0, head, :end]
    return F.linear(merge(mixed), exact[4])


causal = partial(F.scaled_dot_product_attention, is_causal=True)
WRONG = {
    "the future not masked": F.scaled_dot_product_attention,
    "5% too large": wrong.scaled(causal),
    "scores 10% too large": lambda q, k, v: causal(1.1 * q, k, v),
    "the first tile of keys left out": lambda q, k, v: F.pad(
        causal(*(t[..., 128:, :] for t in (q, k, v))), (0, 0, 128, 0)
    ),
}


COPY = ceiling("copy", case="patterns/attention")
MATRIX = ceiling("bfloat16", "burst", case="patterns/attention")
SCORES = {"heads": 16, "tokens": 16384, "width": 2}
scores = bound("GB", "heads * tokens**2 * width", SCORES)  # The memory of one copy of the scores in bf16.
# The memory of one copy of the scores of 65536 tokens in bf16.
scores_64k = bound("GB", "heads * tokens**2 * width", heads=16, tokens=65536, width=2)
# What eight passes over the scores take at the rate of a copy.
passes = bound("ms", "8 * heads * tokens**2 * width / copy", SCORES, copy=COPY)
# How many times as long the layer takes as eight passes over the scores.
over_passes = bound(
    "x", "time / (8 * heads * tokens**2 * width / copy)", SCORES, time=gpu("naive", "16k tokens"), copy=COPY
)
# What the arithmetic of both matmuls takes at the matrix rate.
matmuls = bound("ms", "4 * tokens**2 * heads * size / matrix", SCORES, size=128, matrix=MATRIX)
# What the layer computes for each byte of its scores.
intensity = bound("FLOP/byte", "4 * size / (8 * width)", size=128, width=2)
# The intensity from which on the card computes rather than waits for memory.
ridge = bound("FLOP/byte", "matrix / memory", matrix=MATRIX, memory=COPY)
# What a fused kernel computes for each byte, of the causal half.
fused_intensity = bound("FLOP/byte", "2 * tokens**2 * size / (4 * tokens * size * width)", SCORES, size=128)
# The memory of one copy of the scores of 256 tokens.
short_scores = bound("MB", "heads * tokens**2 * width", heads=16, tokens=256, width=2)
# The bytes of a mask's row, as a part of those of k and v.
mask_part = bound("%", "width * keys / (2 * keys * size * width)", width=2, keys=16384, size=128)

LABELS = {
    "naive": {"label": "naive", "role": "eager"},
    "fused-qkv": {"label": "one QKV projection", "short": "one QKV", "role": "rewrite"},
    "tiled": {"label": "tiled", "role": "rewrite-2"},
    "compile-naive": {"label": "naive, compiled", "role": "compile-max"},
    "sdpa-mask": {"label": "SDPA with a mask", "role": "peer-2"},
    "sdpa": {"label": "SDPA", "role": "peer-1"},
}
CASE = Case(
    question="What does each step from the attention formula to one fused kernel remove?",
    check_at={"forward": [{"tokens": 256, "width": 256, "heads": 2}]},
)

"""One token's attention in Triton, over a cache that is read in parts side by side."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


# --8<-- [start:attention]
@triton.jit
def _rotated(x_ptr, half, cos_ptr, sin_ptr, D: tl.constexpr):
    """RoPE of vectors that begin at x_ptr: x * cos + (-second half, first half) * sin."""
    d = tl.arange(0, D)
    x = tl.load(x_ptr + d[None, :]).to(tl.float32)
    turned = tl.load(x_ptr + ((d + half) % D)[None, :]).to(tl.float32) * tl.where(d < half, -1.0, 1.0)[None, :]
    return x * tl.load(cos_ptr + d).to(tl.float32)[None, :] + turned * tl.load(sin_ptr + d).to(tl.float32)[None, :]


@triton.jit
def _cached(ptr, at, position, D: tl.constexpr):
    return tl.load(ptr + at[:, None] * D + tl.arange(0, D)[None, :], mask=(at < position)[:, None], other=0.0)


@triton.jit
def _absorbed(q, k, v, k_new, v_new, at, position, best, total, acc):
    """Softmax goes on over one more block of the cache; `best` is the largest score so far, in powers of 2."""
    new = (at == position)[:, None]
    k, v = tl.where(new, k_new, k), tl.where(new, v_new, v)
    scores = tl.where((at <= position)[None, :], tl.dot(q, tl.trans(k), input_precision="ieee"), -1e30)
    high = tl.maximum(best, tl.max(scores, 1))
    weights, fade = tl.exp2(scores - high[:, None]), tl.exp2(best - high)
    acc = acc * fade[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    return high, total * fade + tl.sum(weights, 1), acc


@triton.jit
def _attention_kernel(
    qkv_ptr, cos_ptr, sin_ptr, key_ptr, value_ptr, position_ptr, part_ptr, stat_ptr, count_ptr, out_ptr, length, scale,
    HEADS: tl.constexpr, SHARED: tl.constexpr, GROUP: tl.constexpr, QUERIES: tl.constexpr, D: tl.constexpr,
    SPLITS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The new token's attention: its key and value join the cache, the cache is read in SPLITS parts side by side.

    A program has one key head, its HEADS // SHARED query heads (tensor cores want 16 rows: the others are empty) and
    one part of the cache. The last program of a key head to end adds the parts up, for QUERIES (a power of 2) heads.
    Position and earlier keys are read before the wait: an ordinary kernel between two steps must have ended after they
    were written.
    """
    head, split = tl.program_id(0), tl.program_id(1)
    per: tl.constexpr = HEADS // SHARED
    d, g = tl.arange(0, D), tl.arange(0, GROUP)
    if EARLY:
        gdc_launch_dependents()
    position = tl.load(position_ptr)
    key_ptr += head.to(tl.int64) * length * D
    value_ptr += head.to(tl.int64) * length * D
    width = tl.cdiv(tl.cdiv(position + 1, SPLITS), BLOCK) * BLOCK
    first, last = split * width, tl.minimum((split + 1) * width, position + 1)
    at = first + tl.arange(0, BLOCK)
    k, v = _cached(key_ptr, at, position, D), _cached(value_ptr, at, position, D)
    if EARLY:
        gdc_wait()
    cos_ptr += position * D
    sin_ptr += position * D
    starts = (head * per + tl.minimum(g, per - 1)) * D
    q = _rotated(qkv_ptr + starts[:, None], D // 2, cos_ptr, sin_ptr, D) * (scale * 1.4426950408889634)
    k_new = _rotated(qkv_ptr + (HEADS + head) * D, D // 2, cos_ptr, sin_ptr, D).to(k.dtype)
    v_new = tl.load(qkv_ptr + (HEADS + SHARED + head) * D + d)[None, :].to(v.dtype)
    q = q.to(k.dtype)
    if (first <= position) & (position < last):
        tl.store(key_ptr + position * D + d[None, :], k_new)
        tl.store(value_ptr + position * D + d[None, :], v_new)
    best, total = tl.full((GROUP,), -1e30, tl.float32), tl.zeros((GROUP,), tl.float32)
    acc = tl.zeros((GROUP, D), tl.float32)
    if first < last:
        best, total, acc = _absorbed(q, k, v, k_new, v_new, at, position, best, total, acc)
    for start in range(first + BLOCK, last, BLOCK):
        at = start + tl.arange(0, BLOCK)
        k, v = _cached(key_ptr, at, position, D), _cached(value_ptr, at, position, D)
        best, total, acc = _absorbed(q, k, v, k_new, v_new, at, position, best, total, acc)
    own = (head * SPLITS + split) * per + g
    tl.store(part_ptr + own[:, None] * D + d[None, :], acc, mask=(g < per)[:, None])
    tl.store(stat_ptr + own, best, mask=g < per)
    tl.store(stat_ptr + SHARED * SPLITS * per + own, total, mask=g < per)
    tl.debug_barrier()  # all of this program's stores before its count
    if tl.atomic_add(count_ptr + head, 1, sem="acq_rel") == SPLITS - 1:
        tl.debug_barrier()
        query = tl.arange(0, QUERIES)[None, :]
        of_query = (head * SPLITS + tl.arange(0, SPLITS)[:, None]) * per + tl.minimum(query, per - 1)
        # .cg: from L2, where other SMs' stores are
        highs = tl.load(stat_ptr + of_query, cache_modifier=".cg")
        sums = tl.load(stat_ptr + SHARED * SPLITS * per + of_query, cache_modifier=".cg")
        parts = tl.load(part_ptr + of_query[:, :, None] * D + d[None, None, :], cache_modifier=".cg")
        shares = tl.exp2(highs - tl.max(highs, 0)[None, :])
        shares /= tl.sum(shares * sums, 0)[None, :]
        places = (head * per + tl.arange(0, QUERIES)[:, None]) * D + d[None, :]
        tl.store(out_ptr + places, tl.sum(parts * shares[:, :, None], 0), mask=tl.arange(0, QUERIES)[:, None] < per)
        tl.store(count_ptr + head, 0)


# --8<-- [end:attention]

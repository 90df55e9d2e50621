"""One decoding step of a Llama at batch 1 in Triton: every kernel reads its weights at the speed of memory.

Four kernels a layer: norm and query, key, value; attention; output projection and residual add; norm, gate and up;
down and residual add are the second and third again. Each starts before the one before it ends (programmatic
dependent launch): it asks for its weights, then waits for the other kernel's result. It needs torch 2.11 or newer.
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


# --8<-- [start:matvec]
@triton.jit
def _tile(w_ptr, rows, start, K, BLOCK_K: tl.constexpr):
    """Weights of `rows`, as they lie in memory."""
    cols = start + tl.arange(0, BLOCK_K)
    return tl.load(w_ptr + rows.to(tl.int64)[:, None] * K + cols[None, :], mask=(cols < K)[None, :], other=0.0)


@triton.jit
def _dot(w, x_ptr, norm_ptr, start, K, BLOCK_K: tl.constexpr):
    """Each row's products with x, and x squared: the norm's factor is known only at the end of the row."""
    cols = start + tl.arange(0, BLOCK_K)
    x = tl.load(x_ptr + cols, mask=cols < K, other=0.0).to(tl.float32)
    squares = x * x
    if norm_ptr is not None:
        x *= tl.load(norm_ptr + cols, mask=cols < K, other=0.0).to(tl.float32)
    return w.to(tl.float32) * x[None, :], squares


@triton.jit
def _matvec_kernel(
    x_ptr, norm_ptr, w_ptr, scale_ptr, residual_ptr, y_ptr, N, K, eps,
    GATED: tl.constexpr, EARLY: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """y = W norm(x) (+ residual), or silu(gate) * up of both halves of W's rows. BLOCK_N rows a program."""
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = rows < N
    rows = tl.minimum(rows, N - 1)
    if EARLY:
        gdc_launch_dependents()
    w = _tile(w_ptr, rows, 0, K, BLOCK_K)
    if GATED:
        up = _tile(w_ptr, rows + N, 0, K, BLOCK_K)
    if EARLY:
        gdc_wait()
    total, squares = _dot(w, x_ptr, norm_ptr, 0, K, BLOCK_K)
    if GATED:
        second = _dot(up, x_ptr, norm_ptr, 0, K, BLOCK_K)[0]
    for start in range(BLOCK_K, K, BLOCK_K):
        more, also = _dot(_tile(w_ptr, rows, start, K, BLOCK_K), x_ptr, norm_ptr, start, K, BLOCK_K)
        total += more
        squares += also
        if GATED:
            second += _dot(_tile(w_ptr, rows + N, start, K, BLOCK_K), x_ptr, norm_ptr, start, K, BLOCK_K)[0]
    factor = 1.0
    if norm_ptr is not None:
        factor = tl.rsqrt(tl.sum(squares) / K + eps)
    y = tl.sum(total, 1) * factor
    if scale_ptr is not None:
        y *= tl.load(scale_ptr + rows).to(tl.float32)
    if GATED:
        u = tl.sum(second, 1) * factor
        if scale_ptr is not None:
            u *= tl.load(scale_ptr + N + rows).to(tl.float32)
        y = y / (1 + tl.exp(-y)) * u
    if residual_ptr is not None:
        y += tl.load(residual_ptr + rows).to(tl.float32)
    tl.store(y_ptr + rows, y, mask=inside)


# --8<-- [end:matvec]


# --8<-- [start:attention]
@triton.jit
def _rotated(x_ptr, half, cos_ptr, sin_ptr, D: tl.constexpr):
    """RoPE of vectors that begin at x_ptr: x * cos + (-second half, first half) * sin."""
    d = tl.arange(0, D)
    x = tl.load(x_ptr + d[None, :]).to(tl.float32)
    turned = tl.load(x_ptr + ((d + half) % D)[None, :]).to(tl.float32) * tl.where(d < half, -1.0, 1.0)[None, :]
    return x * tl.load(cos_ptr + d).to(tl.float32)[None, :] + turned * tl.load(sin_ptr + d).to(tl.float32)[None, :]


@triton.jit
def _attention_kernel(
    qkv_ptr, cos_ptr, sin_ptr, key_ptr, value_ptr, position_ptr, part_ptr, stat_ptr, count_ptr, out_ptr, length, scale,
    HEADS: tl.constexpr, SHARED: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The new token's attention: its key and value join the cache, the cache is read in SPLITS parts side by side.

    A program has one key head, its HEADS // SHARED query heads (rows up to GROUP are empty) and one part of the cache.
    The last program of a key head to end adds the parts up.
    """
    head, split = tl.program_id(0), tl.program_id(1)
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    per: tl.constexpr = HEADS // SHARED
    position = tl.load(position_ptr)
    d, g = tl.arange(0, D), tl.arange(0, GROUP)
    cos_ptr += position * D
    sin_ptr += position * D
    starts = (head * per + tl.minimum(g, per - 1)) * D
    q = _rotated(qkv_ptr + starts[:, None], D // 2, cos_ptr, sin_ptr, D) * (scale * 1.4426950408889634)
    k_new = _rotated(qkv_ptr + (HEADS + head) * D, D // 2, cos_ptr, sin_ptr, D)
    v_new = tl.load(qkv_ptr + (HEADS + SHARED + head) * D + d)
    key_ptr += head.to(tl.int64) * length * D
    value_ptr += head.to(tl.int64) * length * D
    width = tl.cdiv(tl.cdiv(position + 1, SPLITS), BLOCK) * BLOCK
    first, last = split * width, tl.minimum((split + 1) * width, position + 1)
    dtype = key_ptr.dtype.element_ty
    k_new, q = k_new.to(dtype), q.to(dtype)
    if (first <= position) & (position < last):
        tl.store(key_ptr + position * D + d[None, :], k_new)
        tl.store(value_ptr + position * D + d, v_new)
    best = tl.full((GROUP,), -1e30, tl.float32)
    total = tl.zeros((GROUP,), tl.float32)
    acc = tl.zeros((GROUP, D), tl.float32)
    for start in range(first, last, BLOCK):
        at = start + tl.arange(0, BLOCK)
        k = tl.load(key_ptr + at[:, None] * D + d[None, :], mask=(at < position)[:, None], other=0.0)
        v = tl.load(value_ptr + at[:, None] * D + d[None, :], mask=(at < position)[:, None], other=0.0)
        k = tl.where((at == position)[:, None], k_new, k)
        v = tl.where((at == position)[:, None], v_new[None, :], v)
        scores = tl.where((at <= position)[None, :], tl.dot(q, tl.trans(k), input_precision="ieee"), -1e30)
        high = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp2(scores - high[:, None])
        fade = tl.exp2(best - high)
        total = total * fade + tl.sum(weights, 1)
        acc = acc * fade[:, None] + tl.dot(weights.to(dtype), v, input_precision="ieee")
        best = high
    own = (head * SPLITS + split) * GROUP + g
    tl.store(part_ptr + own[:, None] * D + d[None, :], acc)
    tl.store(stat_ptr + own, best)
    tl.store(stat_ptr + SHARED * SPLITS * GROUP + own, total)
    tl.debug_barrier()
    if tl.atomic_add(count_ptr + head, 1, sem="acq_rel") == SPLITS - 1:
        tl.debug_barrier()
        acc = tl.zeros((GROUP, D), tl.float32)
        total = tl.zeros((GROUP,), tl.float32)
        best = tl.full((GROUP,), -1e30, tl.float32)
        for each in range(SPLITS):
            own = (head * SPLITS + each) * GROUP + g
            high = tl.maximum(best, tl.load(stat_ptr + own, volatile=True))
            fade, share = tl.exp2(best - high), tl.exp2(tl.load(stat_ptr + own, volatile=True) - high)
            total = total * fade + share * tl.load(stat_ptr + SHARED * SPLITS * GROUP + own, volatile=True)
            acc = acc * fade[:, None] + share[:, None] * tl.load(part_ptr + own[:, None] * D + d[None, :], volatile=True)
            best = high
        out = acc / total[:, None]
        tl.store(out_ptr + starts[:, None] + d[None, :], out, mask=(g < per)[:, None])
        tl.store(count_ptr + head, 0)


# --8<-- [end:attention]


# --8<-- [start:launch]
@functools.cache
def _early(device: torch.device) -> dict[str, bool]:
    """Kernels of Hopper and later may start before the one before them has ended."""
    on = device.type == "cuda" and not torch.version.hip and torch.cuda.get_device_capability(device) >= (9, 0)
    return {"EARLY": True, "launch_pdl": True} if on else {"EARLY": False}


def _tile_sizes(N: int, K: int, bytes_each: int) -> dict[str, int]:
    BLOCK_K = min(triton.next_power_of_2(K), 2048 if K % 4096 else 4096)
    BLOCK_N = max(1, 16384 // (BLOCK_K * bytes_each))
    return {"BLOCK_N": BLOCK_N, "BLOCK_K": BLOCK_K, "num_warps": 4}


def matvec(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    norm: Tensor | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
    scale: Tensor | None = None,
    gated: bool = False,
    **tile: int,
) -> Tensor:
    """out = weight @ norm(x) + residual, or silu(gate) * up where the rows of weight are gate, then up.

    Args: x (K,), weight (rows, K) contiguous, out (rows,) or (rows // 2,) if gated; norm (K,), the weight of an RMSNorm
        before; scale (rows,) of int8 or fp8 weights. Sums are in fp32, one rounding at the end.
    """
    N, K = len(out), weight.shape[1]
    tile = tile or _tile_sizes(N, K, weight.element_size() * (2 if gated else 1))
    grid = (triton.cdiv(N, tile["BLOCK_N"]),)
    _matvec_kernel[grid](x, norm, weight, scale, residual, out, N, K, eps, GATED=gated, **_early(x.device), **tile)
    return out


class Attention:
    """One token's attention over a cache (2, shared heads, length, D), in parts side by side."""

    def __init__(self, heads: int, shared: int, D: int, length: int, device: torch.device, splits: int = 16):
        self.sizes = {"HEADS": heads, "SHARED": shared, "GROUP": max(16, triton.next_power_of_2(heads // shared)), "D": D}
        self.splits, self.length = splits, length
        rows = shared * splits * self.sizes["GROUP"]
        self.parts = torch.empty(rows, D, device=device)
        self.stats = torch.empty(2, rows, device=device)
        self.counts = torch.zeros(shared, dtype=torch.int32, device=device)

    def __call__(self, qkv: Tensor, cos: Tensor, sin: Tensor, cache: Tensor, position: Tensor, out: Tensor) -> Tensor:
        """qkv ((heads + 2 * shared) * D,); cos, sin (length, D); position (1,): where the new token stands."""
        _attention_kernel[(self.sizes["SHARED"], self.splits)](
            qkv, cos, sin, cache[0], cache[1], position, self.parts, self.stats, self.counts, out, self.length,
            self.sizes["D"] ** -0.5, SPLITS=self.splits, BLOCK=64, num_warps=4, **self.sizes, **_early(qkv.device),
        )  # fmt: skip
        return out


# --8<-- [end:launch]

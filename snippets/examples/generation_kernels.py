"""One decoding step of a Llama at batch 1 in Triton, five kernels a layer. It needs torch 2.11 or newer.

Norm and query, key, value; RoPE and attention; output projection and residual add; norm, gate, up and SiLU; down and
residual add. On Hopper and later each kernel starts before the one before it has ended (programmatic dependent
launch): it asks for its first weights, and only then waits for the other kernel's result.
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from snippets.examples.generation import Decoder, Generator, Matrix, refuse


# --8<-- [start:matvec]
@triton.jit
def _plain(w):
    """fp32. Whole numbers become the last bits of a large float: converting them takes four times as long as adding."""
    if w.dtype == tl.int8:
        return ((w.to(tl.uint8, bitcast=True) ^ 128).to(tl.uint32) | 0x4B000000).to(
            tl.float32, bitcast=True
        ) - 8388736.0
    return w.to(tl.float32)


@triton.jit
def _entries(x_ptr, norm_ptr, cols, K):
    """x in fp32, times the norm's weight, and x squared: the norm's factor is known only at the end of the row."""
    x = tl.load(x_ptr + cols, mask=cols < K, other=0.0).to(tl.float32)
    squares = x * x
    if norm_ptr is not None:
        x *= tl.load(norm_ptr + cols, mask=cols < K, other=0.0).to(tl.float32)
    return x, squares


@triton.jit
def _weights(w_ptr, rows, start, K, BLOCK_K: tl.constexpr):
    cols = start + tl.arange(0, BLOCK_K)
    return tl.load(w_ptr + rows.to(tl.int64)[:, None] * K + cols[None, :], mask=(cols < K)[None, :], other=0.0)


@triton.jit
def _products(w, x_ptr, norm_ptr, scale_ptr, rows, start, K, BLOCK_K: tl.constexpr):
    """Products of a tile of weights and x, not yet added up, and squares of x."""
    cols = start + tl.arange(0, BLOCK_K)
    if w.dtype == tl.uint8:  # int4: two columns in a byte, a scale for each 128 columns
        x, squares = _entries(x_ptr, norm_ptr, 2 * cols, 2 * K)
        second, more = _entries(x_ptr, norm_ptr, 2 * cols + 1, 2 * K)
        w = w.to(tl.uint32)
        low = ((w & 15) | 0x4B000000).to(tl.float32, bitcast=True) - 8388616.0
        high = ((w >> 4) | 0x4B000000).to(tl.float32, bitcast=True) - 8388616.0
        groups = start // 64 + tl.arange(0, BLOCK_K // 64)
        scale = tl.load(
            scale_ptr + rows[:, None] * (K // 64) + groups[None, :], mask=(groups < K // 64)[None, :], other=0
        )
        products = tl.reshape(low * x[None, :] + high * second[None, :], [rows.shape[0], BLOCK_K // 64, 64])
        return tl.sum(products, 2) * scale.to(tl.float32), squares + more
    else:
        x, squares = _entries(x_ptr, norm_ptr, cols, K)
        return _plain(w) * x[None, :], squares


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
    w = _weights(w_ptr, rows, 0, K, BLOCK_K)
    if GATED:
        w_up = _weights(w_ptr, rows + N, 0, K, BLOCK_K)
    if EARLY:
        gdc_wait()
    total, squares = _products(w, x_ptr, norm_ptr, scale_ptr, rows, 0, K, BLOCK_K)
    if GATED:
        up, _ = _products(w_up, x_ptr, norm_ptr, scale_ptr, rows + N, 0, K, BLOCK_K)
    for start in range(BLOCK_K, K, BLOCK_K):
        w = _weights(w_ptr, rows, start, K, BLOCK_K)
        more, more_squares = _products(w, x_ptr, norm_ptr, scale_ptr, rows, start, K, BLOCK_K)
        total += more
        squares += more_squares
        if GATED:
            w = _weights(w_ptr, rows + N, start, K, BLOCK_K)
            up += _products(w, x_ptr, norm_ptr, scale_ptr, rows + N, start, K, BLOCK_K)[0]
    factor = 1.0
    if norm_ptr is not None:
        columns = 2 * K if w_ptr.dtype.element_ty == tl.uint8 else K
        factor = tl.rsqrt(tl.sum(squares) / columns + eps)
    y = tl.sum(total, 1) * factor
    by_row: tl.constexpr = scale_ptr is not None and w_ptr.dtype.element_ty != tl.uint8
    if by_row:
        y *= tl.load(scale_ptr + rows).to(tl.float32)
    if GATED:
        u = tl.sum(up, 1) * factor
        if by_row:
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


@functools.cache
def _early(device: torch.device) -> dict[str, bool]:
    """Kernels of Hopper and later may start before the one before them has ended."""
    on = device.type == "cuda" and not torch.version.hip and torch.cuda.get_device_capability(device) >= (9, 0)
    return {"EARLY": True, "launch_pdl": True} if on else {"EARLY": False}


def _tile_sizes(K: int, width: int, normed: bool, gated: bool) -> dict[str, int]:
    """From sweeps on an H100. K counts what a row stores, each of `width` bytes."""
    if width == 1:
        rows, columns = 8, 512 if normed else 1024
    elif normed:
        rows, columns = 4 if gated or K > 2048 else 8, 1024
    else:
        rows, columns = 8, 2048
    return {"BLOCK_N": rows, "BLOCK_K": min(triton.next_power_of_2(K), columns), "num_warps": 4}


def matvec(
    matrix: Matrix,
    x: Tensor,
    out: Tensor,
    norm: Tensor | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
    gated: bool = False,
) -> Tensor:
    """out = weight @ norm(x) + residual, or silu(gate) * up where the rows of weight are gate, then up.

    Args:
        matrix: a contiguous weight (rows, columns), and scales: those of `generation.quantized`, or none.
        x: (columns,). norm: the weight of an RMSNorm of x, or none. residual: (rows,), or none; it may be `out`.
        out: (rows,), or (rows // 2,) if gated. Sums are in fp32 and rounded once.
    """
    weight, scale = matrix
    N, K = len(out), weight.shape[1]
    tile = _tile_sizes(K, weight.element_size(), norm is not None, gated)
    grid = (triton.cdiv(N, tile["BLOCK_N"]),)
    _matvec_kernel[grid](x, norm, weight, scale, residual, out, N, K, eps, GATED=gated, **_early(x.device), **tile)
    return out


class Attention:
    """One token's attention over a cache of keys and values (shared heads, length, D), in parts side by side."""

    def __init__(self, heads: int, shared: int, D: int, length: int, device: torch.device, splits: int = 32):
        queries = triton.next_power_of_2(heads // shared)
        self.sizes = {"HEADS": heads, "SHARED": shared, "GROUP": max(16, queries), "QUERIES": queries, "D": D}
        self.splits, self.length = splits, length
        rows = splits * heads
        self.parts = torch.empty(rows, D, device=device)
        self.stats = torch.empty(2, rows, device=device)
        self.counts = torch.zeros(shared, dtype=torch.int32, device=device)

    def __call__(
        self, qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, position: Tensor, out: Tensor
    ) -> Tensor:
        """qkv ((heads + 2 * shared) * D,); cos, sin (length, D); position (1,): where the new token stands."""
        _attention_kernel[(self.sizes["SHARED"], self.splits)](
            qkv, cos, sin, keys, values, position, self.parts, self.stats, self.counts, out, self.length,
            self.sizes["D"] ** -0.5, SPLITS=self.splits, BLOCK=64, num_warps=4, **self.sizes, **_early(qkv.device),
        )  # fmt: skip
        return out


# --8<-- [start:decoder]
class TritonDecoder(Decoder):
    """The step of one sequence by these kernels, with weights in bf16, int8, fp8 or int4."""

    def __init__(self, model: nn.Module, length: int, dtype: torch.dtype | None = None):
        super().__init__(model, 1, length, dtype)
        down, _ = self.layers[0].down
        inner = down.shape[1] * (2 if down.dtype == torch.uint8 else 1)
        sizes = (
            len(self.norm),
            (self.heads + 2 * self.shared) * self.size,
            self.heads * self.size,
            inner,
            len(self.head[0]),
        )
        self.h, self.qkv, self.mixed, self.gated, self.logits = (self.norm.new_empty(n) for n in sizes)
        self.attention = Attention(self.heads, self.shared, self.size, length, self.norm.device)

    def __call__(self, tokens: Tensor, positions: Tensor) -> Tensor:
        h = torch.index_select(self.embedding, 0, tokens, out=self.h[None])[0]
        for layer, (keys, values) in zip(self.layers, self.cache, strict=True):
            matvec(layer.qkv, h, self.qkv, norm=layer.before, eps=self.eps)
            self.attention(self.qkv, self.cos, self.sin, keys[0], values[0], positions, self.mixed)
            matvec(layer.out, self.mixed, h, residual=h)
            matvec(layer.gate_up, h, self.gated, norm=layer.between, eps=self.eps, gated=True)
            matvec(layer.down, self.gated, h, residual=h)
        return matvec(self.head, h, self.logits, norm=self.norm, eps=self.eps)[None]


# --8<-- [end:decoder]


# --8<-- [start:answer]
def prepared(model: nn.Module, length: int = 2048, dtype: torch.dtype | None = None, **sampling: float) -> Generator:
    """Make it once. Weights in bf16; in torch.int8, torch.float8_e4m3fn or torch.uint8 (int4) beside the model's."""
    refuse(model, dtype)
    if (size := model.config.head_dim) < 16 or size & (size - 1):
        raise ValueError(f"model: expected heads of a power of 2, at least 16, got {size}")
    return Generator(model, TritonDecoder(model, length, dtype), **sampling)


# --8<-- [end:answer]

"""A matrix times one vector in Triton, with norm, activation and residual add, from weights of any kind."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


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

# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The Ridgepoint authors
"""LayerNorm and GELU as one kernel in Triton, forward and backward: one file to copy. It needs torch 2.11 or newer,
and its triton.

    z = (x - mean) * rstd * weight + bias    with rstd = 1 / sqrt(variance + eps), over the last dimension
    y = z * Phi(z)                           Phi is the normal distribution's, or approximated with tanh

Sources: Ba, Kiros & Hinton, "Layer Normalization", 2016 (https://arxiv.org/abs/1607.06450);
Hendrycks & Gimpel, "Gaussian Error Linear Units (GELUs)", 2016 (https://arxiv.org/abs/1606.08415);
for the sums of shifted numbers: Chan, Golub & LeVeque, "Algorithms for Computing the Sample Variance", 1983.

Names: M rows (all leading dimensions together) of N columns. Row indices are int64: offsets pass 2^31. Triton makes
accesses of 16 bytes only where it knows that every row begins at one, and of a size or a stride it asks just one thing,
whether 16 divides it. Hence the UNIT: sizes and strides are counted in eights where 8 divides them all.
"""

import functools
import numbers
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import forward_ad


# --8<-- [start:gelu]
@triton.jit
def _phi(z, FINE: tl.constexpr):
    """The normal distribution. FINE: with erf, to the last bits of fp32, in 20 instructions and more. Else 10, within
    5e-5 of itself down to z = -5.6, and smaller than 1e-8 below: a tenth of what rounding to fp16 may change."""
    if FINE:
        phi = 0.5 + 0.5 * tl.erf(z * 0.7071067811865476)
    else:
        a = tl.abs(z)
        tail = (-9.86943458e-07 * a + 4.18377984e-05) * a - 0.000751156694  # log2(1 - Phi(a)), a smooth curve
        tail = ((tail * a + 0.00770502842) * a - 0.0521196928) * a - 0.460477561
        tail = tl.exp2((tail * a - 1.15041583) * a - 1.00005429)
        phi = tl.abs((z > 0.0).to(tl.float32) - tail)
    return phi


@triton.jit
def _sigmoid(z):
    """s = (1 + tanh(u)) / 2 with GELU's u = sqrt(2 / pi) * (z + 0.044715 z^3), as 1 / (1 + exp(-2u)); and 1 - s, as
    exp(-2u) * s: nothing cancels. A root squared is two instructions, a division eight."""
    e = tl.exp2(z * (z * z * -0.10294323958 - 2.30220819814))
    root = tl.rsqrt(1.0 + e)
    s = root * root
    return s, tl.minimum(e, 1e38) * s  # where exp overflows, s is 0


@triton.jit
def _gelu(z, TANH: tl.constexpr, FINE: tl.constexpr):
    if TANH:
        share, _ = _sigmoid(z)
    else:
        share = _phi(z, FINE)
    return z * share


@triton.jit
def _slope(z, TANH: tl.constexpr, FINE: tl.constexpr):
    """The derivative of _gelu. For the exact one Phi(z) + z * density(z), as the density times a polynomial in |z|
    where z < 0, and as 1 less that where z > 0, within 2e-5."""
    bell = tl.exp2(z * z * -0.7213475204444817)  # exp(-z^2 / 2)
    if TANH:
        s, rest = _sigmoid(z)
        slope = s * (1.0 + rest * z * (z * z * 0.214064448798 + 1.59576912161))
    elif FINE:
        slope = _phi(z, FINE) + z * 0.3989422804014327 * bell
    else:
        a = tl.minimum(tl.abs(z), 16.0)  # beyond, the bell is 0
        left = ((0.000704356207 * a - 0.00804296609) * a + 0.039675656) * a - 0.116946039
        left = (((left * a + 0.244426797) * a - 0.797152625) * a + 0.499984345) * bell
        slope = tl.where(z > 0.0, 1.0 - left, left)
    return slope


@triton.jit
def _parameter(ptr, cols, mask, ABSENT: tl.constexpr, OTHER: tl.constexpr = None):
    """Of a weight or a bias, some columns; where there is none, a constant."""
    if ptr is None:
        parameter = tl.full(cols.shape, ABSENT, tl.float32)
    else:
        parameter = tl.load(ptr + cols, mask=mask, other=OTHER)
    return parameter


@triton.jit
def _normalized(x, mean, rstd, weight, bias):
    x_hat = (x.to(tl.float32) - mean) * rstd  # x * rstd - mean * rstd is an instruction less, and not 0 where x is mean
    return x_hat * weight.to(tl.float32) + bias.to(tl.float32)


# --8<-- [end:gelu]


# --8<-- [start:forward]
# A row of equal numbers has an x_hat of 0, and x * rstd - mean * rstd leaves a rounding error there. The forward can
# afford x - mean. For the backward, where an instruction an element counts, it negates the rstd of such a row, and
# x * scale - mean * scale is 0 with a scale of 0.
@triton.jit
def _marked(rstd, squares):
    """rstd as it is stored. With eps = 0 it is infinite, and stays as it is: the gradients are NaN, as PyTorch's."""
    return tl.where((squares == 0.0) & (rstd < float("inf")), -rstd, rstd)


@triton.jit
def _unmarked(rstd):
    """scale and rstd, from what is stored; NaN stays NaN."""
    return tl.where(rstd < 0.0, 0.0, rstd), tl.abs(rstd)


@triton.jit(do_not_specialize=["saved", "x_stride", "N"])
def _forward_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, stats_ptr, x_stride, M, N, eps, saved,
    UNIT: tl.constexpr, TANH: tl.constexpr, FULL: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr,
    BLOCK: tl.constexpr, ERF: tl.constexpr = False,
):  # fmt: skip
    """ROWS whole rows in registers, in tiles, two bf16 numbers to a register: the mean first, then what is left. Reads
    MN, writes MN.

    FULL: a row fills its tiles, and no column needs a mask. Of the first `saved` rows, which are all or none, the
    statistics are stored: a number, so that the same machine code gives the same output with a backward to come and
    without. ERF, in 16 bits too: for the sweep, which tells what that costs.

    EXACT: sums of equal numbers are not rounded, for these have 8 bits that count, or 11 in full tiles. Else the mean
    is corrected by that of the distances from it. Either way it is exact for equal numbers: x_hat is 0.
    """
    x_stride, N = tl.cast(x_stride, tl.int64) * UNIT, N * UNIT
    FINE: tl.constexpr = ERF or y_ptr.dtype.element_ty == tl.float32
    EXACT: tl.constexpr = x_ptr.dtype.element_ty == tl.bfloat16 or (x_ptr.dtype.element_ty == tl.float16 and FULL)
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    lanes = tl.arange(0, BLOCK)
    x = ()
    for tile in tl.static_range(TILES):
        cols = tile * BLOCK + lanes
        inside = (rows < M)[:, None] if FULL else (rows < M)[:, None] & (cols < N)[None, :]
        x = x + (tl.load(x_ptr + rows[:, None] * x_stride + cols[None, :], mask=inside, other=0.0),)
    sums = tl.zeros([ROWS, BLOCK], tl.float32)
    for tile in tl.static_range(TILES):
        sums += x[tile].to(tl.float32) * 0.0000152587890625  # 2^-16 of them: none leaves the range of fp32
    total, count = tl.sum(sums, axis=1), N * 0.0000152587890625
    inverse = 1.0 / count
    mean = total * inverse
    if EXACT:
        mean = tl.fma(tl.fma(-mean, count, total), inverse, mean)  # a quotient's last bits
    else:
        rest = tl.zeros([ROWS, BLOCK], tl.float32)
        for tile in tl.static_range(TILES):
            centered = x[tile].to(tl.float32) - mean[:, None]
            if not FULL:
                centered = tl.where((tile * BLOCK + lanes < N)[None, :], centered, 0.0)
            rest += centered * (1.0 / N)
        mean += tl.sum(rest, axis=1)
    squares = tl.zeros([ROWS, BLOCK], tl.float32)
    for tile in tl.static_range(TILES):
        centered = x[tile].to(tl.float32) - mean[:, None]
        if not FULL:
            centered = tl.where((tile * BLOCK + lanes < N)[None, :], centered, 0.0)
        squares += centered * centered
    squares = tl.sum(squares, axis=1)
    rstd = tl.rsqrt(squares / N + tl.cast(eps, tl.float32))
    tl.store(stats_ptr + rows, mean, mask=rows < saved)
    tl.store(stats_ptr + M + rows, _marked(rstd, squares), mask=rows < saved)
    for tile in tl.static_range(TILES):
        cols = tile * BLOCK + lanes
        inside = (rows < M)[:, None] if FULL else (rows < M)[:, None] & (cols < N)[None, :]
        weight = _parameter(weight_ptr, cols, None if FULL else cols < N, 1.0)
        bias = _parameter(bias_ptr, cols, None if FULL else cols < N, 0.0)
        z = _normalized(x[tile], mean[:, None], rstd[:, None], weight[None, :], bias[None, :])
        tl.store(y_ptr + rows[:, None] * N + cols[None, :], _gelu(z, TANH, FINE), mask=inside)


# --8<-- [end:forward]


# --8<-- [start:forward-wide]
@triton.jit
def _add(x, first, sums, squares):
    """One more number to each lane's sums, which count from the lane's own first number: three instructions. What the
    shift leaves to cancel in the end is no larger than that number's own share of the variance, times a lane's length.
    The sums are 2^-32 of themselves: none leaves the range of fp32 where no number does.
    """
    distance = x - first
    return sums + distance * 2.3283064365386963e-10, squares + distance * distance


@triton.jit
def _combine(first, sums, squares, seen, N, eps):
    """Mean, rstd and squares of a row, from what its lanes have, which saw `seen` numbers each. The second mean is that
    of the distances from the first one: exact in a row of equal numbers."""
    share, parts = seen / N, sums * (4294967296.0 / N)
    mean = tl.sum(share * first + parts)
    mean += tl.sum(share * (first - mean) + parts)
    distance = first - mean
    moved = distance * (sums * 8589934592.0 + seen * distance)
    squares += tl.where(squares < float("inf"), moved, 0.0)  # which may be infinite, too, with the other sign
    squares = tl.sum(squares)
    return mean, tl.rsqrt(squares / N + tl.cast(eps, tl.float32)), squares


@triton.jit(do_not_specialize=["saved", "x_stride", "N"])
def _forward_wide_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, stats_ptr, x_stride, M, N, eps, saved,
    UNIT: tl.constexpr, TANH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row of any length, in tiles that are looked at twice."""
    x_stride, N = tl.cast(x_stride, tl.int64) * UNIT, N * UNIT
    FINE: tl.constexpr = y_ptr.dtype.element_ty == tl.float32
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_stride
    y_ptr += row * N
    lanes = tl.arange(0, BLOCK)
    first = tl.load(x_ptr + lanes, mask=lanes < N, other=0.0, eviction_policy="evict_last").to(tl.float32)
    sums, squares = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    full = N // BLOCK  # tiles that need no mask
    for tile in range(1, full):
        x = tl.load(x_ptr + tile * BLOCK + lanes, eviction_policy="evict_last").to(tl.float32)
        sums, squares = _add(x, first, sums, squares)
    cols = full * BLOCK + lanes
    rest = cols < N
    if (full > 0) & (full * BLOCK < N):
        x = tl.load(x_ptr + cols, mask=rest, other=0.0, eviction_policy="evict_last").to(tl.float32)
        sums, squares = _add(tl.where(rest, x, first), first, sums, squares)
    mean, rstd, squares = _combine(first, sums, squares, full + rest.to(tl.float32), N, eps)
    tl.store(stats_ptr + row, mean, mask=row < saved)
    tl.store(stats_ptr + M + row, _marked(rstd, squares), mask=row < saved)
    for tile in range(full):
        at = tile * BLOCK + lanes
        x = tl.load(x_ptr + at, eviction_policy="evict_first")
        weight, bias = _parameter(weight_ptr, at, None, 1.0), _parameter(bias_ptr, at, None, 0.0)
        z = _normalized(x, mean, rstd, weight, bias)
        tl.store(y_ptr + at, _gelu(z, TANH, FINE))
    if full * BLOCK < N:
        x = tl.load(x_ptr + cols, mask=rest, other=0.0, eviction_policy="evict_first")
        weight, bias = _parameter(weight_ptr, cols, rest, 1.0, 0.0), _parameter(bias_ptr, cols, rest, 0.0, 0.0)
        tl.store(y_ptr + cols, _gelu(_normalized(x, mean, rstd, weight, bias), TANH, FINE), mask=rest)


# --8<-- [end:forward-wide]


# The backward, with x_hat = (x - mean) * rstd, dz = dy * gelu'(x_hat * weight + bias) and g = dz * weight:
#     dx      = rstd * (g - mean(g) - x_hat * mean(g * x_hat))    the means over the row
#     dweight = sum(dz * x_hat)                                   the sums over all rows
#     dbias   = sum(dz)
# z is computed again: to store it would be two tensors more to move, beside five. A program takes every P-th row (P
# programs) and keeps its shares of dweight and dbias in registers. A second kernel adds the shares in a fixed order: no
# atomics, so both are bitwise the same in every run.


# --8<-- [start:backward]
@triton.jit(do_not_specialize=["dy_stride", "x_stride", "N"])
def _backward_kernel(
    dy_ptr, x_ptr, weight_ptr, bias_ptr, stats_ptr, means_ptr, dx_ptr, shares_ptr, dy_stride, x_stride, M, N,
    UNIT: tl.constexpr, TANH: tl.constexpr, FINE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    FOLD: tl.constexpr, STAGES: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """ROWS rows at a time while the next ones are on their way. Reads 2MN, writes MN.

    Of a row the program has BLOCK columns: if that is not the WHOLE row, the row's means are read. FOLD adds the rows
    up before they go into the shares: free where a thread has the same columns of all of them. FINE as for _phi.
    """
    dy_stride, x_stride, N = tl.cast(dy_stride, tl.int64) * UNIT, tl.cast(x_stride, tl.int64) * UNIT, N * UNIT
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    # kept as they are, and turned into fp32 in every turn: half the registers. disable_licm, or it would be done before
    weight = _parameter(weight_ptr, cols, cols < N, 1.0, 0.0)[None, :]
    bias = _parameter(bias_ptr, cols, cols < N, 0.0, 0.0)[None, :]
    dweight = tl.zeros([1 if FOLD else ROWS, BLOCK], tl.float32)
    dbias = tl.zeros([1 if FOLD else ROWS, BLOCK], tl.float32)
    first = tl.program_id(0).to(tl.int64) * ROWS
    for start in tl.range(first, M, tl.num_programs(0) * ROWS, num_stages=STAGES, disable_licm=True):
        rows = tl.cast(start, tl.int64) + tl.arange(0, ROWS)  # the interpreter's start is a Python int
        inside = (rows < M)[:, None] & (cols < N)[None, :]
        x = tl.load(x_ptr + rows[:, None] * x_stride + cols[None, :], mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + rows[:, None] * dy_stride + cols[None, :], mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(stats_ptr + rows, mask=rows < M, other=0.0)[:, None]
        rstd = tl.load(stats_ptr + M + rows, mask=rows < M, other=0.0)[:, None]
        scale, rstd = _unmarked(rstd)
        x_hat = x * scale - mean * scale
        dz = dy * _slope(x_hat * weight.to(tl.float32) + bias.to(tl.float32), TANH, FINE)
        if shares_ptr is not None:
            if weight_ptr is not None:
                dweight += tl.sum(dz * x_hat, axis=0, keep_dims=True) if FOLD else dz * x_hat
            if bias_ptr is not None:
                dbias += tl.sum(dz, axis=0, keep_dims=True) if FOLD else dz
        g = dz * weight.to(tl.float32)
        if WHOLE:
            # both sums in one exchange between the threads
            g_mean, product_mean = tl.split(tl.sum(tl.join(g, g * x_hat), axis=1) / N)
        else:
            g_mean = tl.load(means_ptr + rows, mask=rows < M, other=0.0)
            product_mean = tl.load(means_ptr + M + rows, mask=rows < M, other=0.0)
        dx = g * rstd - (x_hat * (product_mean[:, None] * rstd) + g_mean[:, None] * rstd)
        tl.store(dx_ptr + rows[:, None] * N + cols[None, :], dx, mask=inside)
    if shares_ptr is not None:
        shares_ptr += tl.program_id(0).to(tl.int64) * 2 * N
        if weight_ptr is not None:
            tl.store(shares_ptr + cols, tl.sum(dweight, axis=0), mask=cols < N)
        if bias_ptr is not None:
            tl.store(shares_ptr + N + cols, tl.sum(dbias, axis=0), mask=cols < N)


# --8<-- [end:backward]


# --8<-- [start:sums]
@triton.jit
def _load(ptr, cols, N, POLICY: tl.constexpr):
    return tl.load(ptr + cols, mask=cols < N, other=0.0, eviction_policy=POLICY).to(tl.float32)


@triton.jit
def _x_hat_and_dz(
    dy_ptr, x_ptr, weight, bias_ptr, mean, scale, cols, N, TANH: tl.constexpr, FINE: tl.constexpr, POLICY: tl.constexpr
):
    x_hat = _load(x_ptr, cols, N, POLICY) * scale - mean * scale
    z = x_hat * weight + _parameter(bias_ptr, cols, cols < N, 0.0, 0.0).to(tl.float32)
    return x_hat, _load(dy_ptr, cols, N, POLICY) * _slope(z, TANH, FINE)


@triton.jit(do_not_specialize=["dy_stride", "x_stride", "N"])
def _means_kernel(
    dy_ptr, x_ptr, weight_ptr, bias_ptr, stats_ptr, means_ptr, dx_ptr, dy_stride, x_stride, M, N,
    UNIT: tl.constexpr, TANH: tl.constexpr, FINE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """mean(g) and mean(g * x_hat) of one row of any length. Reads 2MN. Where dx alone is asked for, a second look
    writes it."""
    dy_stride, x_stride, N = tl.cast(dy_stride, tl.int64) * UNIT, tl.cast(x_stride, tl.int64) * UNIT, N * UNIT
    POLICY: tl.constexpr = "evict_first" if dx_ptr is None else "evict_last"
    row = tl.program_id(0).to(tl.int64)
    dy_ptr += row * dy_stride
    x_ptr += row * x_stride
    mean = tl.load(stats_ptr + row)
    scale, rstd = _unmarked(tl.load(stats_ptr + M + row))
    g_sums, product_sums = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        weight = _parameter(weight_ptr, cols, cols < N, 1.0, 0.0).to(tl.float32)
        x_hat, dz = _x_hat_and_dz(dy_ptr, x_ptr, weight, bias_ptr, mean, scale, cols, N, TANH, FINE, POLICY)
        g_sums += dz * weight
        product_sums += dz * weight * x_hat
    g_mean, product_mean = tl.sum(g_sums) / N, tl.sum(product_sums) / N
    if dx_ptr is None:
        tl.store(means_ptr + row, g_mean)
        tl.store(means_ptr + M + row, product_mean)
    else:
        for start in range(0, N, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            weight = _parameter(weight_ptr, cols, cols < N, 1.0, 0.0).to(tl.float32)
            x_hat, dz = _x_hat_and_dz(dy_ptr, x_ptr, weight, bias_ptr, mean, scale, cols, N, TANH, FINE, "evict_first")
            dx = dz * weight * rstd - (x_hat * (product_mean * rstd) + g_mean * rstd)
            tl.store(dx_ptr + row * N + cols, dx, mask=cols < N)


@triton.jit(do_not_specialize=["N"])
def _sum_shares_kernel(
    shares_ptr, dweight_ptr, dbias_ptr, P, N, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """dweight and dbias: the sums of P programs' shares. Reads 2PN, and P is small."""
    N = N * UNIT
    which = tl.program_id(1)
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(0, P, ROWS):
        rows = (start + tl.arange(0, ROWS))[:, None]
        inside = (rows < P) & (cols < N)[None, :]
        total += tl.load(shares_ptr + (2 * rows.to(tl.int64) + which) * N + cols[None, :], mask=inside, other=0.0)
    if which == 0:
        if dweight_ptr is not None:
            tl.store(dweight_ptr + cols, tl.sum(total, axis=0), mask=cols < N)
    else:
        if dbias_ptr is not None:
            tl.store(dbias_ptr + cols, tl.sum(total, axis=0), mask=cols < N)


# --8<-- [end:sums]


# --8<-- [start:launch]
# Chosen by row length from sweeps on an H100 and an H200; nothing is tuned at a user's first call. Threads, not
# warps, since an AMD warp has 64. A thread has 8 elements of a tile or a multiple: accesses of 16 bytes in bf16.
@functools.cache
def _device(device: torch.device) -> tuple[int, int]:
    """Multiprocessors, and threads a warp."""
    if device.type == "cpu":  # the interpreter
        return 2, 32
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, properties.warp_size


def _options(device: torch.device, threads: int, **constants: int) -> dict[str, int]:
    return {**constants, "num_warps": max(1, threads // _device(device)[1])}


@functools.cache
def _shared_memory(device: torch.device) -> int:
    """Of a multiprocessor, in bytes; an H200's where there is no such GPU."""
    if device.type == "cpu" or (device.index or 0) >= torch.cuda.device_count():
        return 228 * 1024
    return torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor


@functools.cache
def _forward_launch(N: int, bits: int, device: torch.device) -> dict[str, int]:
    """With TILES: whole rows in registers. Else two looks at one row."""
    if N <= 256:
        block = triton.next_power_of_2(N)
        return _options(device, 32, ROWS=1024 // block, TILES=1, BLOCK=block)
    if N > 32768:
        return _options(device, 512, BLOCK=4096)
    threads = 32 if N <= 1024 else 64 if N <= 2048 else 128 if N <= 9216 else 256 if N <= 16384 else 512
    return _options(device, threads, ROWS=2 if N <= 4096 else 1, TILES=-(-N // (8 * threads)), BLOCK=8 * threads)


@functools.cache
def _backward_launch(N: int, bits: int, device: torch.device) -> dict[str, int]:
    """BLOCK columns, of the whole row if it fits. PROGRAMS run at once on a multiprocessor."""
    if N > 8192:
        threads, tile, programs = 128, 2048, 4
    elif N > 2048:
        large = N <= 4096 and bits == 16 and _shared_memory(device) >= 128 * 1024  # on other GPUs that spills
        threads, tile, programs = 512, 16384 if large else 8192, 1
    elif bits == 16:
        threads, tile, programs = 64 if 256 < N <= 1024 else 128, 2048, 4
    else:  # in fp32, registers leave room for fewer programs at once
        threads, tile, programs = 128, 4096 if N > 1024 else 2048, 2 if N > 1024 else 4 if N > 256 else 3
    # of shared memory, what one stage takes, for x and dy
    room = _shared_memory(device) // programs - 4096
    while tile * bits // 4 > room:
        tile //= 2
    stages = 2 if bits == 32 and N <= 2048 else min(3, 1 + room // (tile * bits // 4))
    block = min(triton.next_power_of_2(N), tile)
    fold = int(block >= 8 * threads)
    return _options(device, threads, PROGRAMS=programs, ROWS=tile // block, BLOCK=block, FOLD=fold, STAGES=stages)


@functools.cache
def _means_launch(N: int, device: torch.device) -> dict[str, int]:
    block = next(b for b in (4096, 2048, 1024) if b == 1024 or -N % b <= N // 6)  # not much of it beyond the row's end
    return _options(device, block // 8, BLOCK=block)


@functools.cache
def _sum_launch(N: int, device: torch.device) -> dict[str, int]:
    block = min(256, max(8, triton.next_power_of_2(N // (2 * _device(device)[0]))))  # some programs for everyone
    return _options(device, 128, ROWS=2048 // block, BLOCK=block)


# --8<-- [end:launch]


# --8<-- [start:op]
# indices of 32 bits have room for the largest tile beyond; a grid has room for so many blocks of columns
_MOST_ROWS, _MOST_COLUMNS = 2**30, 2**26


def _checked(M: int, N: int) -> None:
    if M > _MOST_ROWS or N > _MOST_COLUMNS:
        raise ValueError(f"x: expected at most {_MOST_ROWS} rows and {_MOST_COLUMNS} columns, got {M} x {N}")


def _rows(t: Tensor) -> tuple[Tensor, int]:
    """Rows of neighbouring columns, and how far apart they are: no copy where the strides allow that."""
    if t.is_contiguous():
        return t, t.shape[-1]
    rows = t.reshape(-1, t.shape[-1])
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    return rows, rows.stride(0)


def _contiguous(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.contiguous()


def _forward_fake(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, tanh: bool, dtype: torch.dtype, save: bool
) -> tuple[Tensor, Tensor]:
    y = torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)
    return y, x.new_empty((2, *x.shape[:-1]) if save else 0, dtype=torch.float32)


def _forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, tanh: bool, dtype: torch.dtype, save: bool
) -> tuple[Tensor, Tensor]:
    """y, and where a backward is to come the rows' mean and rstd."""
    y, stats = _forward_fake(x, weight, bias, eps, tanh, dtype, save)
    if x.numel() == 0:
        return y, stats
    N = x.shape[-1]
    M = x.numel() // N
    _checked(M, N)
    (x, x_stride), weight, bias = _rows(x), _contiguous(weight), _contiguous(bias)
    unit = 8 if N % 8 == 0 == x_stride % 8 else 1
    sizes = x_stride // unit, M, N // unit
    arguments = x, weight, bias, y, stats, *sizes, eps, M if save else 0, unit, tanh
    options = _forward_launch(N, 8 * x.element_size(), x.device)
    with torch.cuda.device_of(x):  # triton launches on the current device
        if "TILES" in options:
            # beyond 8192, of the lengths that fill their tiles a few alone: each number of them would be compiled anew
            full = options["TILES"] * options["BLOCK"] == N and (N <= 8192 or N % 4096 == 0)
            _forward_kernel[(-(-M // options["ROWS"]),)](*arguments, FULL=full, **options)
        else:
            _forward_wide_kernel[(M,)](*arguments, **options)
    return y, stats


def _gradient(parameter: Tensor | None, x: Tensor, asked: bool) -> Tensor:
    if parameter is None or not asked:
        return x.new_empty(0)
    return torch.empty_like(parameter, memory_format=torch.contiguous_format)


def _backward_fake(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, stats: Tensor, tanh: bool, parameters: bool
) -> tuple[Tensor, Tensor, Tensor]:
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    return dx, _gradient(weight, x, parameters), _gradient(bias, x, parameters)


def _backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, stats: Tensor, tanh: bool, parameters: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """dx; dweight and dbias, empty where there is no such parameter, or none that asks for a gradient."""
    dx, dweight, dbias = _backward_fake(dy, x, weight, bias, stats, tanh, parameters)
    if x.numel() == 0:
        return dx, dweight.zero_(), dbias.zero_()
    N = x.shape[-1]
    M = x.numel() // N
    (dy, dy_stride), (x, x_stride) = _rows(dy), _rows(x)
    weight, bias = _contiguous(weight), _contiguous(bias)
    unit = 8 if N % 8 == dy_stride % 8 == x_stride % 8 == 0 else 1
    fine = torch.float32 in [t.dtype for t in (dy, weight, bias) if t is not None]
    sizes = dy_stride // unit, x_stride // unit, M, N // unit, unit, tanh, fine
    options = dict(_backward_launch(N, 8 * x.element_size(), x.device))
    parts = -(-N // options["BLOCK"])
    at_once = _device(x.device)[0] * options.pop("PROGRAMS")
    programs = max(1, min(at_once // parts, -(-M // options["ROWS"])))
    shares = x.new_empty((programs, 2, N), dtype=torch.float32) if parameters else None
    given = dy, x, weight, bias, stats
    with torch.cuda.device_of(x):
        means = torch.empty_like(stats) if parts > 1 and parameters else None
        if parts > 1:
            outputs = means, None if parameters else dx
            _means_kernel[(M,)](*given, *outputs, *sizes, **_means_launch(N, x.device))
        if parts == 1 or parameters:
            _backward_kernel[programs, parts](*given, means, dx, shares, *sizes, WHOLE=parts == 1, **options)
        if parameters:
            grads = None if weight is None else dweight, None if bias is None else dbias
            options = _sum_launch(N, x.device)
            _sum_shares_kernel[-(-N // options["BLOCK"]), 2](shares, *grads, programs, N // unit, unit, **options)
    return dx, dweight, dbias


# define and impl cost the host less per call than custom_op; fake tensors, torch.compile and opcheck work as well
_namespace = __name__.replace(".", "_")  # another copy of this file, in another package, has another
_library = torch.library.Library(_namespace, "FRAGMENT")
_FORWARD = (
    "(Tensor x, Tensor? weight, Tensor? bias, float eps, bool tanh, ScalarType dtype, bool save) -> (Tensor, Tensor)"
)
_BACKWARD = (
    "(Tensor dy, Tensor x, Tensor? weight, Tensor? bias, Tensor stats, bool tanh, bool parameters)"
    " -> (Tensor, Tensor, Tensor)"
)
for _name, _schema, _function, _meta in (
    ("layer_norm_gelu_forward", _FORWARD, _forward, _forward_fake),
    ("layer_norm_gelu_forward_eager", _FORWARD, _forward, _forward_fake),  # without a derivative: a Function has it
    ("layer_norm_gelu_backward", _BACKWARD, _backward, _backward_fake),
    ("layer_norm_gelu_backward_recorded", _BACKWARD, _backward, _backward_fake),  # refuses to be differentiated
):
    _library.define(_name + _schema)
    for _key in ("CUDA", "CPU"):  # AMD's GPUs are "CUDA" to torch; the CPU is for triton's interpreter
        _library.impl(_name, _function, _key)
    torch.library.register_fake(f"{_namespace}::{_name}", _meta, lib=_library)
_forward_op = getattr(torch.ops, _namespace).layer_norm_gelu_forward.default
_eager_forward = getattr(torch.ops, _namespace).layer_norm_gelu_forward_eager.default._op  # __call__ costs 0.3 us
_backward_op = getattr(torch.ops, _namespace).layer_norm_gelu_backward.default
_recorded_backward = getattr(torch.ops, _namespace).layer_norm_gelu_backward_recorded.default
# --8<-- [end:op]


# --8<-- [start:autograd]
# of the innermost call of torch.func, None outside; compiled code is guarded by it
_transforms, _Transform = torch._C._functorch.peek_interpreter_stack, torch._C._functorch.CInterpreter
# Who may be recording: Dynamo, jit.trace, modes of __torch_dispatch__ (make_fx, export), make_fx before autograd.
# They get the operator, derivative and all; eager code takes the shorter way, through the Function alone.
_compiling, _tracing = torch.compiler.is_dynamo_compiling, torch._C._is_tracing
_modes, _included = torch._C._len_torch_dispatch_stack, torch._C._dispatch_tls_is_dispatch_key_included
_PRE_DISPATCH = torch._C.DispatchKey.PreDispatch
_grad_enabled = torch.is_grad_enabled  # found sooner than in torch
_autocast = torch.is_autocast_enabled


def _refuse_transforms(*tensors: Tensor | None) -> None:
    """Inside torch.func, and for a tensor with a tangent, the operator would return a result without derivatives."""
    unseen = isinstance(_transforms(), _Transform) or torch.compiler.is_compiling()  # there tangents do not show
    if unseen or any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise RuntimeError("layer_norm_gelu: expected a call outside torch.func (grad, jvp, vmap, ...) and "
                           "forward-mode AD, got one inside: this kernel has a plain backward only")  # fmt: skip


_ONCE = (
    "layer_norm_gelu: expected a backward without create_graph=True, got one with: it would lose the second "
    "derivative, which this kernel does not have"
)


class _LayerNormGELU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, tanh: bool, dtype: torch.dtype,
        computed: tuple[Tensor, ...] = (),
    ) -> Tensor:  # fmt: skip
        y, stats = computed or _eager_forward(x, weight, bias, eps, tanh, dtype, True)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, bias, stats)
        ctx.tanh = tanh
        return y

    @staticmethod
    def backward(ctx, dy: Tensor | None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return None, None, None, None, None, None, None
        if forward_ad._current_level >= 0:
            _refuse_transforms(dy)
        if torch.is_grad_enabled():  # not once_differentiable, which lets a dy that needs no gradient pass
            raise RuntimeError(_ONCE)
        _, weight, bias, *_ = ctx.needs_input_grad
        backward = _recorded_backward if _compiling() or _modes() else _backward_op
        dx, dweight, dbias = backward(dy, *ctx.saved_tensors, ctx.tanh, weight or bias)
        return dx, dweight if weight else None, dbias if bias else None, None, None, None, None


# Function.apply, but for what that does for torch.func, which is refused: 1.5 us
_apply = super(torch.autograd.Function, _LayerNormGELU).apply


def _differentiable(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, tanh: bool, dtype: torch.dtype, save: bool
) -> tuple[Tensor, Tensor]:
    """The operator for autograd: its gradient is in every graph that holds it, whoever recorded that."""
    if forward_ad._current_level >= 0 or isinstance(_transforms(), _Transform):
        _refuse_transforms(x, weight, bias)
    needed = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias))
    with torch._C._AutoDispatchBelowAutograd():
        y, stats = _forward_op(x, weight, bias, eps, tanh, dtype, save or needed)
    return _apply(x, weight, bias, eps, tanh, dtype, (y, stats)) if needed else y, stats


class _Once(torch.autograd.Function):
    """The backward's operator for autograd: in a graph, it has a derivative no more than in eager code."""

    @staticmethod
    def forward(ctx, *arguments: object) -> tuple[Tensor, ...]:
        with torch._C._AutoDispatchBelowAutograd():
            return _recorded_backward(*arguments)

    @staticmethod
    def backward(ctx, *_: Tensor) -> None:
        raise RuntimeError(_ONCE)


_library.impl("layer_norm_gelu_forward", _differentiable, "Autograd")
_library.impl("layer_norm_gelu_backward_recorded", _Once.apply, "Autograd")
# torch's default, for an operator that has no derivative, costs the host 0.3 us
_library.impl("layer_norm_gelu_forward_eager", torch.library.fallthrough_kernel, "Autograd")


# --8<-- [end:autograd]


_DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # what is most used is found first
_NUMBER = (float, numbers.Real)  # NumPy's, too; the first is found sooner
_INTERPRETED = not isinstance(_forward_kernel, triton.runtime.JITFunction)
# torch autocasts layer_norm to fp32 on a GPU, and gelu takes what it gets; we do as the installed torch does
_AUTOCAST = torch._C._dispatch_has_kernel_for_dispatch_key("aten::layer_norm", "AutocastCUDA")


def _nested(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Of a jagged tensor, the function of its values; of a strided one, of its tensors one by one."""
    if x.layout != torch.jagged:
        return torch.nested.as_nested_tensor([function(t) for t in x.unbind()])
    if x._ragged_idx == x.dim() - 1:
        raise ValueError("x: expected rows of one length, got a jagged tensor whose last dimension is ragged")
    y = function(x.values())
    return torch.nested.nested_tensor_from_jagged(y, x.offsets(), x.lengths(), x._ragged_idx)


def _wrong_type(name: str, t: object) -> TypeError:
    got = t.dtype if isinstance(t, Tensor) else type(t)
    return TypeError(f"{name}: expected an fp32, fp16 or bf16 tensor, got {got}")


def _refuse_parameter(name: str, t: Tensor, x: Tensor) -> None:
    """For the one reason or the other."""
    if t.is_nested:
        raise TypeError(f"{name}: expected a plain tensor, got a nested one")
    if t.shape != (x.shape[-1],):
        raise ValueError(f"{name}: expected shape {list(x.shape[-1:])}, got {list(t.shape)}")
    raise ValueError(f"{name}: expected on {x.device}, where x is, got {t.device}")


def layer_norm_gelu(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, approximate: str = "none"
) -> Tensor:
    """GELU of a LayerNorm over the last dimension: gelu((x - mean) / sqrt(variance + eps) * weight + bias).

    The function, and the dtype of the result, of `F.gelu(F.layer_norm(x, (N,), weight, bias, eps), approximate=...)`:
    computed in fp32 and rounded once, to the dtype of x (under CUDA autocast to fp32). Where that is fp16 or bf16, the
    normal distribution of the exact GELU is good to 1/30000 of itself, in fp32 to fp32's last bits. What the two have
    and this has not: several normalized dimensions, fp64, double backward, torch.func and forward-mode AD.

    Args:
        x: [..., N], fp32, fp16 or bf16, with any strides; nested, too. Rows without unit stride are copied first.
        weight: [N], fp32, fp16 or bf16; its dtype may differ from that of x. None: as if of ones.
        bias: [N], likewise. None: as if of zeros.
        eps: added to the variance.
        approximate: "none" for the normal distribution, "tanh" for its approximation with tanh.

    Returns:
        A new contiguous tensor of the shape of x. Gradients flow to x, to weight and to bias, each in its own dtype;
        those of weight and bias are bitwise the same in every run, and cost nothing where neither is asked for. For
        gradients x is kept, and two numbers a row.

    Raises:
        TypeError: x, weight or bias is not a tensor of one of these dtypes; weight or bias is nested; eps is no number.
        ValueError: x has no dimension, a last one that is jagged, or more than 2^30 rows or 2^26 columns; weight or
            bias is not [N], or on another device than x; approximate is neither "none" nor "tanh"; or x is on a CPU
            while Triton's interpreter (TRITON_INTERPRET=1) is off.
        RuntimeError: in a backward with create_graph=True, since there is no double backward; inside torch.func (grad,
            jvp, vmap, ...) and in forward-mode AD, which are not supported either.

    Sources: Ba, Kiros & Hinton, "Layer Normalization", 2016 (https://arxiv.org/abs/1607.06450);
    Hendrycks & Gimpel, "Gaussian Error Linear Units (GELUs)", 2016 (https://arxiv.org/abs/1606.08415).
    """
    if not isinstance(x, Tensor) or (dtype := x.dtype) not in _DTYPES:
        raise _wrong_type("x", x)
    if weight is not None and (not isinstance(weight, Tensor) or weight.dtype not in _DTYPES):
        raise _wrong_type("weight", weight)
    if bias is not None and (not isinstance(bias, Tensor) or bias.dtype not in _DTYPES):
        raise _wrong_type("bias", bias)
    if not isinstance(eps, _NUMBER):
        raise TypeError(f"eps: expected a number, got {type(eps)}")
    if x.is_nested:
        return _nested(lambda t: layer_norm_gelu(t, weight, bias, eps, approximate), x)
    shape = x.shape
    if not shape:
        raise ValueError("x: expected at least one dimension, got none")
    if weight is not None and (weight.is_nested or weight.shape != (shape[-1],) or weight.device != x.device):
        _refuse_parameter("weight", weight, x)
    if bias is not None and (bias.is_nested or bias.shape != (shape[-1],) or bias.device != x.device):
        _refuse_parameter("bias", bias, x)
    if not isinstance(approximate, str) or approximate not in ("none", "tanh"):
        raise ValueError(f'approximate: expected "none" or "tanh", got {approximate!r}')
    on_cuda = x.is_cuda
    if not on_cuda and x.is_cpu and not _INTERPRETED:
        raise ValueError("x: expected a GPU tensor, got one on the CPU (which needs TRITON_INTERPRET=1)")
    if forward_ad._current_level >= 0 or (_transforms() is not None and isinstance(_transforms(), _Transform)):
        _refuse_transforms(x, weight, bias)
    tanh = approximate == "tanh"
    if on_cuda and _AUTOCAST and _autocast("cuda"):
        dtype = torch.float32
    needed = _grad_enabled() and (
        x.requires_grad or (weight is not None and weight.requires_grad) or (bias is not None and bias.requires_grad)
    )
    if _compiling() or _modes() or _tracing() or _included(_PRE_DISPATCH):
        return _forward_op(x, weight, bias, eps, tanh, dtype, False)[0]
    if needed:
        return _apply(x, weight, bias, eps, tanh, dtype)
    return _eager_forward(x, weight, bias, eps, tanh, dtype, False)[0]

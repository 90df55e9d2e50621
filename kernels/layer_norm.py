# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The Ridgepoint authors
"""LayerNorm in Triton, forward and backward: one file to copy. It needs torch 2.11 or newer, and its triton.

    y = (x - mean) * rstd * weight + bias    with rstd = 1 / sqrt(variance + eps), over the last dimension

Sources: Ba, Kiros & Hinton, "Layer Normalization", 2016 (https://arxiv.org/abs/1607.06450);
Welford, "Note on a Method for Calculating Corrected Sums of Squares and Products", Technometrics 4(3), 1962;
Chan, Golub & LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.

What a copy needs, by the marks [start:...] and [end:...]. Calls that need a part that was deleted raise a NameError.

    every copy               forward, launch, op, autograd, and what stands between the marks
    rows of 1,025 to 2,048 columns, or more than 4,096
                             tiles, forward-row; beyond 2^19 bits a row exchange; beyond 2^22, and on AMD's GPUs beyond
                             2^19, statistics and forward-wide
    a backward               backward, sums; for 8,193 to 16,384 columns tiles and backward-wide
    refusing wrong input     what follows the last mark, and _refuse_transforms in autograd
    torch.compile, export    op, and _differentiable and _Once in autograd

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


# Functions, because at each call Triton compares a kernel's global constants with what they were: 0.3 us for each.
@triton.constexpr_function
def _missing():
    """The word of a part that has not come: a mean of NaN, 0x7FC00000."""
    return 9205357640488583168


@triton.constexpr_function
def _sent():
    """What is set in a word that has come: the sign bit of the squares."""
    return 2147483648


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


@triton.constexpr_function
def _scale():
    """2^-16: sums of numbers times it do not leave the range of fp32."""
    return 0.0000152587890625


@triton.jit
def _quotient(total, count):
    """Exact where it has few bits, which a GPU's division is not; and the division need not wait for the total."""
    inverse = 1.0 / count
    quotient = total * inverse
    return tl.fma(tl.fma(-quotient, count, total), inverse, quotient)


@triton.jit
def _is_exact(dtype: tl.constexpr, COLUMNS: tl.constexpr):
    """Whether sums of equal numbers are not rounded, for these have 8 bits that count in bf16, and 11 in fp16."""
    MOST: tl.constexpr = 65536 if dtype == tl.bfloat16 else 8192 if dtype == tl.float16 else 0
    return COLUMNS <= MOST


@triton.jit(do_not_specialize=["x_stride", "N"])
def _forward_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, stats_ptr, x_stride, M, N, eps,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS short rows at a time, held in registers: the mean first, then what is left. Reads MN, writes MN.

    Where sums of equal numbers are rounded, the mean is corrected by that of the distances from it, and then exact.
    """
    x_stride, N = tl.cast(x_stride, tl.int64) * UNIT, N * UNIT
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    within = cols < N
    inside = (rows < M)[:, None] & within[None, :]
    x = tl.load(x_ptr + rows[:, None] * x_stride + cols[None, :], mask=inside, other=0.0).to(tl.float32)
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + cols, mask=within, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + cols, mask=within, other=0.0).to(tl.float32)
    inverse = 1.0 / (N * _scale()) * _scale()  # the division is the one in the quotient
    mean = _quotient(tl.sum(x * _scale(), axis=1), N * _scale())
    if not _is_exact(x_ptr.dtype.element_ty, BLOCK):
        distance = tl.where(inside, x - mean[:, None], 0.0)
        mean += tl.sum(distance * inverse, axis=1)
    centered = x - mean[:, None]
    squares = tl.sum(tl.where(inside, centered * centered, 0.0), axis=1)
    rstd = tl.rsqrt(squares * inverse + tl.cast(eps, tl.float32))
    y = centered * rstd[:, None]
    if weight_ptr is not None:
        y *= weight[None, :]
    if bias_ptr is not None:
        y += bias[None, :]
    tl.store(y_ptr + rows[:, None] * N + cols[None, :], y, mask=inside)
    if stats_ptr is not None:
        tl.store(stats_ptr + rows, mean, mask=rows < M)
        tl.store(stats_ptr + M + rows, _marked(rstd, squares), mask=rows < M)


# --8<-- [end:forward]


# --8<-- [start:tiles]
@triton.jit
def _lanes(BLOCK: tl.constexpr):
    """Eight neighbours for each thread."""
    return tl.arange(0, BLOCK // 8)[:, None] * 8 + tl.arange(0, 8)[None, :]


@triton.jit
def _raw(ptr, start, N, BLOCK: tl.constexpr, FULL: tl.constexpr, POLICY: tl.constexpr):
    lanes = start + _lanes(BLOCK)
    if FULL:  # needs no mask
        return tl.load(ptr + lanes, eviction_policy=POLICY)
    return tl.load(ptr + lanes, mask=lanes < N, other=0.0, eviction_policy=POLICY)


@triton.jit
def _tile(ptr, start, N, BLOCK: tl.constexpr, FULL: tl.constexpr, POLICY: tl.constexpr):
    return _raw(ptr, start, N, BLOCK, FULL, POLICY).to(tl.float32)


@triton.jit
def _store(ptr, start, value, N, BLOCK: tl.constexpr, FULL: tl.constexpr, CACHE: tl.constexpr):
    lanes = start + _lanes(BLOCK)
    if FULL:
        tl.store(ptr + lanes, value, cache_modifier=CACHE)
    else:
        tl.store(ptr + lanes, value, mask=lanes < N, cache_modifier=CACHE)


@triton.jit
def _scaled(x_hat, weight_ptr, bias_ptr, start, N, BLOCK: tl.constexpr, FULL: tl.constexpr):
    """A tile times the weight and plus the bias, where they are given."""
    if weight_ptr is None:
        y = x_hat if bias_ptr is None else x_hat + _tile(bias_ptr, start, N, BLOCK, FULL, "")
    elif bias_ptr is None:
        y = x_hat * _tile(weight_ptr, start, N, BLOCK, FULL, "")
    else:
        weight, bias = _tile(weight_ptr, start, N, BLOCK, FULL, ""), _tile(bias_ptr, start, N, BLOCK, FULL, "")
        y = tl.fma(x_hat, weight, bias)
    return y


@triton.jit
def _pairs(ptr, start, N, BLOCK: tl.constexpr, FULL: tl.constexpr):
    """Eight 2-byte numbers for each thread, as four words of two."""
    words = start // 2 + tl.arange(0, BLOCK // 8)[:, None] * 4 + tl.arange(0, 4)[None, :]
    ptr = ptr.to(tl.pointer_type(tl.int32))
    if FULL:
        return tl.load(ptr + words)
    return tl.load(ptr + words, mask=words < N // 2, other=0)


@triton.jit
def _look(tile, after, dtype: tl.constexpr):
    """As fp32. In a later look words of two are made fp32 anew: the compiler would keep those of the look before.

    It does not know that what came of that look, `after`, is a number.
    """
    if tile.dtype == tl.int32:
        if after is not None:
            tile ^= -(after != after).to(tl.int32)
        if dtype == tl.bfloat16:  # the upper half of an fp32
            first, second = (tile << 16).to(tl.float32, bitcast=True), (tile & -65536).to(tl.float32, bitcast=True)
        else:
            first, second = tile.to(tl.int16).to(dtype, bitcast=True), (tile >> 16).to(tl.int16).to(dtype, bitcast=True)
        tile = tl.reshape(tl.join(first, second), [tile.shape[0], 8])
    return tile.to(tl.float32)


@triton.jit
def _prefetch(ptr, inside):
    """Asks for the 32 bytes around it to come into the L2 cache, and does not wait."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.b32 $0, 0; }", "=r,l,r",
        [ptr.to(tl.int64), inside.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


# --8<-- [end:tiles]


# --8<-- [start:exchange]
@triton.jit
def _combine_parts(count, mean, squares, other_count, other_mean, other_squares):
    """Mean, and sum of squared distances from it, of two sets of numbers: Chan, Golub & LeVeque, 1979."""
    both = count + other_count
    share = other_count / tl.maximum(both, 1.0)
    distance = other_mean - mean  # its square may leave the range of fp32, and inf times an empty set's 0 is NaN
    return both, tl.fma(distance, share, mean), tl.fma(share * count * distance, distance, squares + other_squares)


@triton.jit
def _arrived(ptr, inside):
    """The words, each once it is not 0, or after some looks as missing; just sent where it is not inside."""
    POLLS: tl.constexpr = 256  # a fifth of a millisecond, where a row's parts usually wait for some microseconds
    return tl.inline_asm_elementwise(
        """{ .reg .pred p, q; .reg .b32 polls; .reg .b64 at, word;
        setp.ne.s32 q, $2, 0; mov.b64 at, $1; mov.b64 word, 0x80000000; mov.b32 polls, 0;
        again: @q ld.relaxed.gpu.global.b64 word, [at]; setp.eq.and.s64 p, word, 0, q;
        add.s32 polls, polls, 1; setp.lt.and.s32 p, polls, $4, p; @p bra again;
        setp.eq.s64 p, word, 0; selp.b64 $0, $3, word, p; }""", "=l,l,r,l,r",
        [ptr.to(tl.int64), inside.to(tl.int32), tl.full(ptr.shape, _missing(), tl.int64),
         tl.full(ptr.shape, POLLS, tl.int32)],
        dtype=tl.int64, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def _send(mean, squares, ptr):
    """The two of a part as one word of 64 bits, written and read at once: no order between writes is needed."""
    word = (mean.to(tl.uint32, bitcast=True).to(tl.int64) << 32) | squares.to(tl.uint32, bitcast=True).to(tl.int64)
    tl.atomic_xchg(ptr, word | _sent(), sem="relaxed")
    return word | _sent()


@triton.jit
def _receive(words_ptr, PARTS: tl.constexpr, SLOTS: tl.constexpr, WAIT: tl.constexpr):
    """The words of a row's parts, a slot for each thread.

    No word is 0, for the sign bit of the squares is set, and 0 is what is there until it is written.
    """
    slots = tl.arange(0, SLOTS)
    if WAIT:
        return _arrived(words_ptr + slots, slots < PARTS)
    words = tl.load(words_ptr + slots, mask=slots < PARTS, other=_sent())
    return tl.where(words == 0, _missing(), words)


@triton.jit
def _is_missing(words, part, SLOTS: tl.constexpr):
    return tl.max(((words == _missing()) & (tl.arange(0, SLOTS) == part)).to(tl.int32)) > 0


@triton.jit
def _together(words, N, COLUMNS: tl.constexpr, SLOTS: tl.constexpr):
    """Mean and sum of squares of a row, from the words of its parts: NaN if one is missing."""
    counts = tl.minimum(tl.maximum(N - tl.arange(0, SLOTS) * COLUMNS, 0), COLUMNS).to(tl.float32)
    means = (words >> 32).to(tl.uint32).to(tl.float32, bitcast=True)
    squares = tl.abs(words.to(tl.uint32).to(tl.float32, bitcast=True))
    _, mean, squares = tl.reduce((counts, means, squares), 0, _combine_parts)
    return mean, squares


# --8<-- [end:exchange]


# --8<-- [start:forward-row]
@triton.jit
def _kept(x_ptr, tile, left, BLOCK: tl.constexpr, PACKED: tl.constexpr, WHOLE: tl.constexpr):
    """A tile of a part of which `left` columns are there."""
    if PACKED:
        return _pairs(x_ptr, tile * BLOCK, left, BLOCK, WHOLE)
    else:  # Triton wants it
        return _raw(x_ptr, tile * BLOCK, left, BLOCK, WHOLE, "")


@triton.jit
def _distances(tile, mean, left, dtype: tl.constexpr, WHOLE: tl.constexpr):
    """Of a tile's numbers from the mean; 0 for those past the `left` columns that are there."""
    distance = _look(tile, mean, dtype) - mean
    if not WHOLE:
        distance = tl.where(_lanes(distance.shape[0] * 8) < left, distance, 0.0)
    return distance


@triton.jit
def _sum(x):
    """Of all numbers, in an order that does not depend on where the compiler finds it best to have them."""
    return tl.sum(tl.sum(x, axis=1))


@triton.jit
def _count(left, COLUMNS: tl.constexpr, FULL: tl.constexpr):
    """Of a part's columns, of which `left` are there at most. The last parts may have none: then 1, and a mean of 0."""
    count = tl.minimum(left, COLUMNS)
    return count if FULL else tl.maximum(count, 1)


@triton.jit
def _part_from_memory(x_ptr, left, TILES: tl.constexpr, BLOCK: tl.constexpr, PACKED: tl.constexpr, FULL: tl.constexpr):
    """Mean and sum of squares of a part that another program has: the same operations in the same order."""
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    tiles = tl.minimum(tl.cdiv(left, BLOCK), TILES)  # a loop of known length would be unrolled, into more registers
    count = _count(left, TILES * BLOCK, FULL)
    sums = tl.zeros([BLOCK // 8, 8], tl.float32)
    for tile in range(tiles):
        kept = _kept(x_ptr, tile, left, BLOCK, PACKED, False)
        sums = tl.fma(_look(kept, None, dtype), _scale(), sums)
    mean = _quotient(_sum(sums), count * _scale())
    if not _is_exact(dtype, TILES * BLOCK):
        rest = tl.zeros([BLOCK // 8, 8], tl.float32)
        for tile in range(tiles):
            kept = _kept(x_ptr, tile, left, BLOCK, PACKED, False)
            rest = tl.fma(_distances(kept, mean, left - tile * BLOCK, dtype, False), 1.0 / count, rest)
        mean += _sum(rest)
    squares = tl.zeros([BLOCK // 8, 8], tl.float32)
    for tile in range(tiles):
        kept = _kept(x_ptr, tile, left, BLOCK, PACKED, False)
        distance = _distances(kept, mean, left - tile * BLOCK, dtype, False)
        squares = tl.fma(distance, distance, squares)
    return mean, _sum(squares)


@triton.jit
def _row_from_memory(
    x_ptr, words_ptr, words, part, left, N,
    PARTS: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr, SLOTS: tl.constexpr, PACKED: tl.constexpr,
    FULL: tl.constexpr,
):  # fmt: skip
    """Mean and sum of squares of a row of which parts are missing; whoever comes later finds them."""
    for other in range(PARTS):
        if _is_missing(words, other, SLOTS):
            to = (other - part) * (TILES * BLOCK)
            mean, square = _part_from_memory(x_ptr + to, left - to, TILES, BLOCK, PACKED, FULL)
            words = tl.where(tl.arange(0, SLOTS) == other, _send(mean, square, words_ptr + other), words)
    return _together(words, N, TILES * BLOCK, SLOTS)


@triton.jit
def _all_kept(
    x_ptr, left, PARTS: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr, PACKED: tl.constexpr, FULL: tl.constexpr
):
    kept = ()
    for tile in tl.static_range(TILES):
        kept = kept + (_kept(x_ptr, tile, left, BLOCK, PACKED, FULL or (PARTS == 1 and tile < TILES - 1)),)
    return kept


@triton.jit(do_not_specialize=["x_stride", "N"])
def _forward_row_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, stats_ptr, words_ptr, x_stride, M, N, eps,
    UNIT: tl.constexpr, PARTS: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr, SLOTS: tl.constexpr,
    PACKED: tl.constexpr, AHEAD: tl.constexpr, FULL: tl.constexpr, WAIT: tl.constexpr,
):  # fmt: skip
    """A row, or one of its PARTS, held in registers as TILES: the mean first, then what is left. Reads MN, writes MN.

    PACKED tiles stay in the two bytes a number in which they come, and are made fp32 at each of three looks. What a
    program AHEAD rows later needs, which cannot start yet, goes into the L2 cache.
    """
    x_stride, N = tl.cast(x_stride, tl.int64) * UNIT, N * UNIT
    part = tl.program_id(0) % PARTS
    row = (tl.program_id(0) // PARTS).to(tl.int64)
    start = part * (TILES * BLOCK)
    left = N - start  # all that follows counts from the part's start
    x_ptr += row * x_stride + start
    y_ptr += row * N + start
    count = _count(left, TILES * BLOCK, FULL or PARTS == 1)
    kept = _all_kept(x_ptr, left, PARTS, TILES, BLOCK, PACKED, FULL)
    if AHEAD:
        for tile in tl.static_range(TILES):
            eights = tile * BLOCK + tl.arange(0, BLOCK // 8) * 8  # one for each thread
            _prefetch(x_ptr + AHEAD * x_stride + eights, (eights < left) & (row + AHEAD < M))
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    sums = tl.zeros([BLOCK // 8, 8], tl.float32)
    for tile in tl.static_range(TILES):
        sums = tl.fma(_look(kept[tile], None, dtype), _scale(), sums)
    mean = _quotient(_sum(sums), count * _scale())
    if not _is_exact(dtype, TILES * BLOCK):
        rest = tl.zeros([BLOCK // 8, 8], tl.float32)
        for tile in tl.static_range(TILES):
            whole = FULL or (PARTS == 1 and tile < TILES - 1)
            rest = tl.fma(_distances(kept[tile], mean, left - tile * BLOCK, dtype, whole), 1.0 / count, rest)
        mean += _sum(rest)
    squares = tl.zeros([BLOCK // 8, 8], tl.float32)
    for tile in tl.static_range(TILES):
        whole = FULL or (PARTS == 1 and tile < TILES - 1)
        distance = _distances(kept[tile], mean, left - tile * BLOCK, dtype, whole)
        squares = tl.fma(distance, distance, squares)
    square = _sum(squares)
    if PARTS > 1:
        words_ptr += row * PARTS
        _send(mean, square, words_ptr + part)
        words = _receive(words_ptr, PARTS, SLOTS, WAIT)
        mean, square = _together(words, N, TILES * BLOCK, SLOTS)
        if mean != mean:  # a part is missing, or there is a NaN in the row
            mean, square = _row_from_memory(
                x_ptr, words_ptr, words, part, left, N, PARTS, TILES, BLOCK, SLOTS, PACKED, FULL
            )
            kept = _all_kept(x_ptr, left, PARTS, TILES, BLOCK, PACKED, FULL)  # its registers held other parts
    rstd = tl.rsqrt(square / N + tl.cast(eps, tl.float32))
    if stats_ptr is not None:
        tl.store(stats_ptr + row, mean, mask=part == 0)
        tl.store(stats_ptr + M + row, _marked(rstd, square), mask=part == 0)
    for tile in tl.static_range(TILES):
        whole = FULL or (PARTS == 1 and tile < TILES - 1)
        x_hat = (_look(kept[tile], rstd, dtype) - mean) * rstd
        y = _scaled(x_hat, weight_ptr, bias_ptr, start + tile * BLOCK, N, BLOCK, whole)
        _store(y_ptr, tile * BLOCK, y, left, BLOCK, whole, "")


# --8<-- [end:forward-row]


# --8<-- [start:statistics]
@triton.jit
def _origin(x_ptr, N):
    """A number of the row to count its mean from: that of equal numbers is then exact.

    The mean loses the digits by which its origin is farther from zero. So it is the first number or the last, whichever
    is nearer: an outlier is seldom both.
    """
    first, last = tl.load(x_ptr).to(tl.float32), tl.load(x_ptr + (N - 1)).to(tl.float32)
    return tl.where(tl.abs(first) < tl.abs(last), first, last)


@triton.jit
def _add(x, origin, sums, squares, N):
    """Eight more numbers into each thread's sums of distances from its origin, over N, and of their squares."""
    distance = x - origin[:, None]
    return sums + tl.sum(distance * (1.0 / N), axis=1), squares + tl.sum(distance * distance, axis=1)


@triton.jit
def _combine(base, origin, sums, squares, seen, N, eps):
    """Mean, rstd and squares of the row, from what its threads have, which saw `seen` numbers each.

    The mean counts from the base.
    """
    mean = base + tl.sum(seen * (1.0 / N) * (origin - base) + sums)
    distance = origin - mean
    moved = squares + distance * (2.0 * N * sums + seen * distance)
    squares = tl.sum(tl.where(squares < float("inf"), moved, squares))  # beyond the range of fp32 they stay there
    return mean, tl.rsqrt(squares / N + tl.cast(eps, tl.float32)), squares


# --8<-- [end:statistics]


# --8<-- [start:forward-wide]
@triton.jit(do_not_specialize=["x_stride", "N"])
def _forward_wide_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, stats_ptr, x_stride, M, N, eps,
    UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row of any length, looked at twice, in tiles of eight neighbours for each thread."""
    x_stride, N = tl.cast(x_stride, tl.int64) * UNIT, N * UNIT
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_stride
    y_ptr += row * N
    lanes = _lanes(BLOCK)
    # a mean of numbers of the row is no farther from the row's mean than they are: see the page for what that costs
    base, seen = _origin(x_ptr, N), tl.sum((lanes < N).to(tl.float32), axis=1)
    distance = tl.where(lanes < N, _tile(x_ptr, 0, N, BLOCK, False, "evict_last") - base, 0.0)
    origin = base + tl.sum(distance / tl.maximum(seen, 1.0)[:, None], axis=1)
    sums, squares = tl.zeros([BLOCK // 8], tl.float32), tl.zeros([BLOCK // 8], tl.float32)
    full = N // BLOCK  # tiles that need no mask
    for tile in range(full):
        sums, squares = _add(_tile(x_ptr, tile * BLOCK, N, BLOCK, True, "evict_last"), origin, sums, squares, N)
    rest = full * BLOCK + lanes < N
    if full * BLOCK < N:
        x = _tile(x_ptr, full * BLOCK, N, BLOCK, False, "evict_last")
        sums, squares = _add(tl.where(rest, x, origin[:, None]), origin, sums, squares, N)
    seen = 8.0 * full + tl.sum(rest.to(tl.float32), axis=1)
    mean, rstd, squares = _combine(base, origin, sums, squares, seen, N, eps)
    if stats_ptr is not None:
        tl.store(stats_ptr + row, mean)
        tl.store(stats_ptr + M + row, _marked(rstd, squares))
    for tile in range(full):
        _normalize(x_ptr, weight_ptr, bias_ptr, y_ptr, mean, rstd, tile * BLOCK, N, BLOCK, True)
    if full * BLOCK < N:
        _normalize(x_ptr, weight_ptr, bias_ptr, y_ptr, mean, rstd, full * BLOCK, N, BLOCK, False)


@triton.jit
def _normalize(x_ptr, weight_ptr, bias_ptr, y_ptr, mean, rstd, start, N, BLOCK: tl.constexpr, FULL: tl.constexpr):
    x = _tile(x_ptr, start, N, BLOCK, FULL, "evict_first")
    y = _scaled((x - mean) * rstd, weight_ptr, bias_ptr, start, N, BLOCK, FULL)
    _store(y_ptr, start, y, N, BLOCK, FULL, ".cs")


# --8<-- [end:forward-wide]


# The backward, with x_hat = (x - mean) * rstd and g = dy * weight:
#     dx      = rstd * (g - mean(g) - x_hat * mean(g * x_hat))    the means over the row
#     dweight = sum(dy * x_hat)                                   the sums over all rows
#     dbias   = sum(dy)
# A program takes every P-th row (P programs) and keeps its shares of dweight and dbias in registers. A second kernel
# adds the shares in a fixed order: no atomics, so both are bitwise the same in every run.


# --8<-- [start:backward]
@triton.jit(do_not_specialize=["dy_stride", "x_stride", "N"])
def _backward_kernel(
    dy_ptr, x_ptr, weight_ptr, stats_ptr, means_ptr, dx_ptr, shares_ptr, dy_stride, x_stride, M, N,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, FOLD: tl.constexpr, STAGES: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """ROWS rows at a time while the next ones are on their way. Reads 2MN, writes MN.

    Of a row the program has BLOCK columns: if that is not the WHOLE row, the row's means are read. FOLD adds the rows
    up before they go into the shares: free where a thread has the same columns of all of them. Without shares_ptr there
    are no shares.
    """
    dy_stride, x_stride, N = tl.cast(dy_stride, tl.int64) * UNIT, tl.cast(x_stride, tl.int64) * UNIT, N * UNIT
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + cols, mask=cols < N, other=0.0)
    dweight = tl.zeros([1 if FOLD else ROWS, BLOCK], tl.float32)
    dbias = tl.zeros([1 if FOLD else ROWS, BLOCK], tl.float32)
    first = tl.program_id(0).to(tl.int64) * ROWS
    for start in tl.range(first, M, tl.num_programs(0) * ROWS, num_stages=STAGES):
        rows = tl.cast(start, tl.int64) + tl.arange(0, ROWS)  # the interpreter's start is a Python int
        live = rows < M
        inside = live[:, None] & (cols < N)[None, :]
        x = tl.load(x_ptr + rows[:, None] * x_stride + cols[None, :], mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + rows[:, None] * dy_stride + cols[None, :], mask=inside, other=0.0).to(tl.float32)
        scale, rstd = _unmarked(tl.load(stats_ptr + M + rows, mask=live, other=0.0))
        shift = tl.load(stats_ptr + rows, mask=live, other=0.0) * scale
        product = dy * (x * scale[:, None] - shift[:, None])
        if shares_ptr is not None:
            dweight += tl.sum(product, axis=0, keep_dims=True) if FOLD else product
            dbias += tl.sum(dy, axis=0, keep_dims=True) if FOLD else dy
        if WHOLE:
            g = dy
            if weight_ptr is not None:
                g *= weight.to(tl.float32)[None, :]
                product *= weight.to(tl.float32)[None, :]
            g_mean = tl.sum(g, axis=1) / N
            product_mean = tl.sum(product, axis=1) / N
        else:
            g_mean = tl.load(means_ptr + rows, mask=live, other=0.0)
            product_mean = tl.load(means_ptr + M + rows, mask=live, other=0.0)
        slope = -product_mean * scale * scale
        offset = shift * product_mean * scale - g_mean * rstd
        own = dy * rstd[:, None]
        if weight_ptr is not None:
            own *= weight.to(tl.float32)[None, :]
        dx = x * slope[:, None] + offset[:, None] + own
        tl.store(dx_ptr + rows[:, None] * N + cols[None, :], dx, mask=inside)
    if shares_ptr is not None:
        shares_ptr += tl.program_id(0).to(tl.int64) * 2 * N
        tl.store(shares_ptr + cols, tl.sum(dweight, axis=0), mask=cols < N)
        tl.store(shares_ptr + N + cols, tl.sum(dbias, axis=0), mask=cols < N)


# --8<-- [end:backward]


# --8<-- [start:backward-wide]
@triton.jit
def _weighted(dy, weight_ptr, start, N, BLOCK: tl.constexpr, FULL: tl.constexpr, POLICY: tl.constexpr):
    if weight_ptr is not None:
        dy *= _tile(weight_ptr, start, N, BLOCK, FULL, POLICY)
    return dy


@triton.jit
def _unpacked(kept, zero):
    """As fp32, but made anew: if it knew that zero is one, the compiler would keep the fp32 of the first look."""
    if kept.dtype.primitive_bitwidth == 16:
        kept = (kept.to(tl.int16, bitcast=True) ^ zero).to(kept.dtype, bitcast=True)
    return kept.to(tl.float32)


@triton.jit(do_not_specialize=["dy_stride", "x_stride", "N"])
def _backward_wide_kernel(
    dy_ptr, x_ptr, weight_ptr, stats_ptr, dx_ptr, shares_ptr, dy_stride, x_stride, M, N,
    UNIT: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr, FULL: tl.constexpr,
    W1: tl.constexpr, W2: tl.constexpr, KEPT: tl.constexpr = False,
):  # fmt: skip
    """One row at a time, in TILES tiles: registers have room for the shares only, so the row is looked at twice.

    Without shares it may be KEPT. Only the last tile may hang over the row's end, if it is not FULL.
    """
    dy_stride, x_stride, N = tl.cast(dy_stride, tl.int64) * UNIT, tl.cast(x_stride, tl.int64) * UNIT, N * UNIT
    dweight = (tl.zeros([BLOCK // 8, 8], tl.float32),) * TILES
    dbias = (tl.zeros([BLOCK // 8, 8], tl.float32),) * TILES
    # disable_licm: the masks and addresses of all tiles, hoisted out of the loop, would spill
    for index in tl.range(tl.program_id(0), M, tl.num_programs(0), disable_licm=True):
        row = tl.cast(index, tl.int64)
        dy_row, x_row, dx_row = dy_ptr + row * dy_stride, x_ptr + row * x_stride, dx_ptr + row * N
        scale, rstd = _unmarked(tl.load(stats_ptr + M + row))
        shift = tl.load(stats_ptr + row) * scale
        g_sums, product_sums = tl.zeros([BLOCK // 8], tl.float32), tl.zeros([BLOCK // 8], tl.float32)
        dweight_added, dbias_added, kept = (), (), ()
        for tile in tl.static_range(TILES):
            dy = _raw(dy_row, tile * BLOCK, N, BLOCK, FULL or tile < TILES - 1, "" if KEPT else "evict_last")
            x = _raw(x_row, tile * BLOCK, N, BLOCK, FULL or tile < TILES - 1, "" if KEPT else "evict_last")
            if KEPT:
                kept = kept + (dy, x)
            dy, x_hat = dy.to(tl.float32), x.to(tl.float32) * scale - shift
            g = _weighted(dy, weight_ptr, tile * BLOCK, N, BLOCK, FULL or tile < TILES - 1, W1)
            if shares_ptr is not None:
                dweight_added = dweight_added + (dweight[tile] + dy * x_hat,)
                dbias_added = dbias_added + (dbias[tile] + dy,)
            g_sums += tl.sum(g, axis=1)
            product_sums += tl.sum(g * x_hat, axis=1)
        if shares_ptr is not None:
            dweight, dbias = dweight_added, dbias_added
        g_mean, product_mean = tl.split(tl.sum(tl.join(g_sums, product_sums), axis=0) / N)
        slope = -product_mean * scale * scale
        offset = shift * product_mean * scale - g_mean * rstd
        zero = (rstd != rstd).to(tl.int16)
        for tile in tl.static_range(TILES):
            if KEPT:
                x, dy = _unpacked(kept[2 * tile + 1], zero), _unpacked(kept[2 * tile], zero)
            else:
                x = _tile(x_row, tile * BLOCK, N, BLOCK, FULL or tile < TILES - 1, "evict_first")
                dy = _tile(dy_row, tile * BLOCK, N, BLOCK, FULL or tile < TILES - 1, "evict_first")
            dx = x * slope + offset
            dx += _weighted(dy * rstd, weight_ptr, tile * BLOCK, N, BLOCK, FULL or tile < TILES - 1, W2)
            _store(dx_row, tile * BLOCK, dx, N, BLOCK, FULL or tile < TILES - 1, "")
    if shares_ptr is not None:
        shares_ptr += tl.program_id(0).to(tl.int64) * 2 * N
        for tile in tl.static_range(TILES):
            _store(shares_ptr, tile * BLOCK, dweight[tile], N, BLOCK, FULL or tile < TILES - 1, "")
            _store(shares_ptr + N, tile * BLOCK, dbias[tile], N, BLOCK, FULL or tile < TILES - 1, "")


# --8<-- [end:backward-wide]


# --8<-- [start:sums]
@triton.jit
def _load(ptr, cols, N, POLICY: tl.constexpr):
    return tl.load(ptr + cols, mask=cols < N, other=0.0, eviction_policy=POLICY).to(tl.float32)


@triton.jit(do_not_specialize=["dy_stride", "x_stride", "N"])
def _means_kernel(
    dy_ptr, x_ptr, weight_ptr, stats_ptr, means_ptr, dx_ptr, dy_stride, x_stride, M, N,
    UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """mean(g) and mean(g * x_hat) of one row of any length. Reads 2MN.

    Where the parameters need no gradient, dx follows at once: the second look finds much of the row in the L2 cache.
    """
    dy_stride, x_stride, N = tl.cast(dy_stride, tl.int64) * UNIT, tl.cast(x_stride, tl.int64) * UNIT, N * UNIT
    row = tl.program_id(0).to(tl.int64)
    dy_ptr += row * dy_stride
    x_ptr += row * x_stride
    scale, rstd = _unmarked(tl.load(stats_ptr + M + row))
    shift = tl.load(stats_ptr + row) * scale
    POLICY: tl.constexpr = "" if dx_ptr is None else "evict_last"
    g_sums, product_sums = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        g = _load(dy_ptr, cols, N, POLICY)
        if weight_ptr is not None:
            g *= _load(weight_ptr, cols, N, "")
        g_sums += g
        product_sums += g * (_load(x_ptr, cols, N, POLICY) * scale - shift)
    g_mean, product_mean = tl.sum(g_sums) / N, tl.sum(product_sums) / N
    if dx_ptr is None:
        tl.store(means_ptr + row, g_mean)
        tl.store(means_ptr + M + row, product_mean)
    else:
        slope = -product_mean * scale * scale
        offset = shift * product_mean * scale - g_mean * rstd
        for start in range(0, N, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            own = _load(dy_ptr, cols, N, "evict_first") * rstd
            if weight_ptr is not None:
                own *= _load(weight_ptr, cols, N, "")
            dx = _load(x_ptr, cols, N, "evict_first") * slope + offset + own
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
# warps, since an AMD warp has 64. A thread has 8 elements of a tile or a multiple: accesses of 16 bytes in bf16. W1
# and W2 are the eviction policies of the weight's two looks.
@functools.cache
def _device(device: torch.device) -> tuple[int, int]:
    """Multiprocessors, and threads a warp."""
    if device.type == "cpu":  # the interpreter
        return 2, 32
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, properties.warp_size


def _options(device: torch.device, threads: int, **constants: int | str) -> dict[str, int | str]:
    return {**constants, "num_warps": threads // _device(device)[1]}


def _parts(N: int, columns: int, device: torch.device) -> int:
    """Of that many columns, if the parts of a row are likely to be at work at a time; else 0.

    Where they are not, after some waiting each reads the others' columns itself. They wait in PTX.
    """
    multiprocessors, warp = _device(device)
    parts = -(-N // columns)
    step = max(1, triton.next_power_of_2(parts) // 4)  # each number of parts is compiled anew: two to a doubling of N
    parts = -(-parts // step) * step
    room = 32 if device.type == "cpu" else min(32, 4 * multiprocessors)
    return 0 if torch.version.hip or warp != 32 or parts > room else parts


@functools.cache
def _forward_launch(N: int, bits: int, device: torch.device) -> dict[str, int | str]:
    """With ROWS: some short rows a program. With TILES: one in registers, or a part. With neither: two looks at one."""
    block = triton.next_power_of_2(N)
    if N <= 1024:
        return _options(device, 128, ROWS=2048 * 16 // bits // block, BLOCK=block)
    if 2048 < N <= 4096:
        return _options(device, 256, ROWS=2, BLOCK=block)
    parts = _parts(N, 2**17 // bits, device) if 2**19 // bits < N else 1
    if not parts:
        # Threads that hold copies of a sum must have it to the bit. Fused, each would round the other's products alone.
        return _options(device, 1024, BLOCK=8192, enable_fp_fusion=False)
    # threads, columns of a tile, whether packed, and how many rows later what is fetched is needed
    threads, block, packed, ahead = 512, 4096, False, 0
    if parts > 1:
        threads, block, packed = 128, 1024, bits == 16
        ahead = 2**25 // (bits * triton.next_power_of_2(N))
    elif N <= 2048:
        threads, block = 128, 2048
    elif N <= 12288:
        threads, block = 256, 2048
    elif N > 20480:
        packed = True
    tiles = -(-N // (parts * block))
    # Where parts are missing the compiler would take more registers, and fuse other products with other sums than where
    # none is: the bits would depend on who computed a part.
    alike = {"maxnreg": 64, "enable_fp_fusion": False} if parts > 1 else {}
    return _options(
        device, threads, PARTS=parts, TILES=tiles, BLOCK=block, SLOTS=threads, PACKED=packed, AHEAD=ahead, **alike
    )


@functools.cache
def _backward_launch(N: int, bits: int, device: torch.device) -> dict[str, int | str]:
    """With ROWS: whole rows, or blocks of columns where they do not fit. Without: one row in tiles, two looks.

    PROGRAMS run at once on a multiprocessor.
    """
    if 8192 < N <= 16384:
        threads, block = (512, 4096) if bits == 16 else (1024, 8192)
        policy = "evict_last" if bits == 32 or N <= 10240 else ""
        return _options(device, threads, PROGRAMS=1, TILES=-(-N // block), BLOCK=block, W1=policy, W2="")
    # few programs mean few shares to add; as long as what they have in flight, in shared memory, keeps the memory busy
    threads, tile, programs = (128, 2048, 4) if N <= 2048 else (256, 8192, 1)
    if bits == 32 and N > 2048:
        threads, tile, programs = (256, 4096, 2) if N <= 4096 else (512, 8192, 1)
    block = min(triton.next_power_of_2(N), tile)
    # 64 KiB of it at most for bf16: wider dtypes and AMD's smaller memory get a stage less
    stages = 3 if bits == 16 and _device(device)[1] == 32 else 2
    rows, fold = tile // block, int(block >= 8 * threads)
    alike = {"enable_fp_fusion": False} if block < 32 else {}  # as in the forward's two looks
    return _options(
        device, threads, PROGRAMS=programs, ROWS=rows, TILES=1, BLOCK=block, FOLD=fold, STAGES=stages, **alike
    )


def _alone(N: int, bits: int) -> dict[str, int | str]:
    """What is other in the backward's launch where dx alone is asked for, and room for shares is free.

    PROGRAMS 0: one for each row, or ROWS. Tiles and threads stay, so that sums keep their order, and dx its bits.
    """
    if N <= 4096:
        return {"PROGRAMS": 0, "STAGES": 1} | ({"ROWS": 1} if N > 2048 else {})
    if N <= 8192 or N > 16384:
        return {}
    if bits == 32:
        return {"PROGRAMS": 0}
    if N <= 12288:
        return {"PROGRAMS": 0, "KEPT": True, "W1": ""}
    return {"PROGRAMS": 0, "KEPT": True, "W1": "evict_last"} | ({"maxnreg": 64} if _PTX else {})  # two at a time


@functools.cache
def _means_launch(device: torch.device) -> dict[str, int]:
    return _options(device, 512, BLOCK=4096)


@functools.cache
def _sum_launch(N: int, device: torch.device) -> dict[str, int]:
    block = min(2048, max(8, triton.next_power_of_2(N // (2 * _device(device)[0]))))  # some programs for everyone
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


_INTERPRETED = not isinstance(_forward_kernel, triton.runtime.JITFunction)
_PTX = not (_INTERPRETED or torch.version.hip)


def _forward_fake(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, dtype: torch.dtype, save: bool
) -> tuple[Tensor, Tensor]:
    y = torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)
    return y, x.new_empty((2, *x.shape[:-1]) if save else 0, dtype=torch.float32)


def _forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, dtype: torch.dtype, save: bool
) -> tuple[Tensor, Tensor]:
    """y, and where a backward is to come the rows' mean and rstd."""
    y, stats = _forward_fake(x, weight, bias, eps, dtype, save)
    if x.numel() == 0:
        return y, stats
    N = x.shape[-1]
    M = x.numel() // N
    _checked(M, N)
    (x, x_stride), weight, bias = _rows(x), _contiguous(weight), _contiguous(bias)
    unit = 8 if N % 8 == 0 == x_stride % 8 else 1
    arguments = x, weight, bias, y, stats if save else None
    sizes = x_stride // unit, M, N // unit, eps, unit
    options = dict(_forward_launch(N, 8 * x.element_size(), x.device))
    with torch.cuda.device_of(x):  # triton launches on the current device
        if "ROWS" in options:
            _forward_kernel[(-(-M // options["ROWS"]),)](*arguments, *sizes, **options)
        elif "TILES" in options:
            parts = options["PARTS"]
            options["AHEAD"] *= _PTX
            if options["PACKED"] and (unit == 1 or x.data_ptr() % 4):
                options["PACKED"] = False
                options.pop("maxnreg", None)
            full = N % (parts * options["TILES"] * options["BLOCK"]) == 0
            options["FULL"] = full and (parts == 1 or N & (N - 1) == 0)  # each full number of parts is compiled anew
            words = None if parts == 1 else torch.zeros((M, parts), dtype=torch.int64, device=x.device)
            _forward_row_kernel[(M * parts,)](*arguments, words, *sizes, WAIT=_PTX, **options)
        else:
            _forward_wide_kernel[(M,)](*arguments, *sizes, **options)
    return y, stats


def _gradient(parameter: Tensor | None, x: Tensor, asked: bool) -> Tensor:
    if parameter is None or not asked:
        return x.new_empty(0)
    return torch.empty_like(parameter, memory_format=torch.contiguous_format)


def _backward_fake(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, stats: Tensor, parameters: bool
) -> tuple[Tensor, Tensor, Tensor]:
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    return dx, _gradient(weight, x, parameters), _gradient(bias, x, parameters)


def _backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, stats: Tensor, parameters: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """dx, dweight and dbias; the last two are empty if no `parameters` need a gradient, or there is none."""
    dx, dweight, dbias = _backward_fake(dy, x, weight, bias, stats, parameters)
    if x.numel() == 0:
        return dx, dweight.zero_(), dbias.zero_()
    N = x.shape[-1]
    M = x.numel() // N
    (dy, dy_stride), (x, x_stride), weight = _rows(dy), _rows(x), _contiguous(weight)
    unit = 8 if N % 8 == dy_stride % 8 == x_stride % 8 == 0 else 1
    sizes = dy_stride // unit, x_stride // unit, M, N // unit, unit
    bits = 8 * x.element_size()
    options = {**_backward_launch(N, bits, x.device), **({} if parameters else _alone(N, bits))}
    at_once, tiles = _device(x.device)[0] * options.pop("PROGRAMS") or M, options.pop("TILES")
    parts = -(-N // (options["BLOCK"] * tiles))
    programs = max(1, min(at_once // parts, -(-M // options.get("ROWS", 1))))
    shares = x.new_empty((programs, 2, N), dtype=torch.float32) if parameters else None
    with torch.cuda.device_of(x):
        if "ROWS" not in options:
            arguments = dy, x, weight, stats, dx, shares, *sizes
            _backward_wide_kernel[(programs,)](*arguments, TILES=tiles, FULL=N % options["BLOCK"] == 0, **options)
        else:
            means = None if parts == 1 else torch.empty_like(stats)
            if parts > 1:
                alone = None if parameters else dx
                _means_kernel[(M,)](dy, x, weight, stats, means, alone, *sizes, **_means_launch(x.device))
            if parts == 1 or parameters:
                arguments = dy, x, weight, stats, means, dx, shares, *sizes
                _backward_kernel[programs, parts](*arguments, WHOLE=parts == 1, **options)
        if parameters:
            grads = None if weight is None else dweight, None if bias is None else dbias
            options = _sum_launch(N, x.device)
            _sum_shares_kernel[-(-N // options["BLOCK"]), 2](shares, *grads, programs, N // unit, unit, **options)
    return dx, dweight, dbias


# define and impl cost the host less per call than custom_op; fake tensors, torch.compile and opcheck work as well
_namespace = __name__.replace(".", "_")  # another copy of this file, in another package, has another
_library = torch.library.Library(_namespace, "FRAGMENT")
_FORWARD = "(Tensor x, Tensor? weight, Tensor? bias, float eps, ScalarType dtype, bool save) -> (Tensor, Tensor)"
_BACKWARD = (
    "(Tensor dy, Tensor x, Tensor? weight, Tensor? bias, Tensor stats, bool parameters) -> (Tensor, Tensor, Tensor)"
)
for _name, _schema, _function, _meta in (
    ("layer_norm_forward", _FORWARD, _forward, _forward_fake),
    ("layer_norm_forward_eager", _FORWARD, _forward, _forward_fake),  # without a derivative: a Function has it
    ("layer_norm_backward", _BACKWARD, _backward, _backward_fake),
    ("layer_norm_backward_recorded", _BACKWARD, _backward, _backward_fake),  # refuses to be differentiated
):
    _library.define(_name + _schema)
    for _key in ("CUDA", "CPU"):  # AMD's GPUs are "CUDA" to torch; the CPU is for triton's interpreter
        _library.impl(_name, _function, _key)
    torch.library.register_fake(f"{_namespace}::{_name}", _meta, lib=_library)
_forward_op = getattr(torch.ops, _namespace).layer_norm_forward.default
_eager_forward = getattr(torch.ops, _namespace).layer_norm_forward_eager.default._op  # __call__ costs 0.3 us
_backward_op = getattr(torch.ops, _namespace).layer_norm_backward.default
_recorded_backward = getattr(torch.ops, _namespace).layer_norm_backward_recorded.default
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
        raise RuntimeError("layer_norm: expected a call outside torch.func (grad, jvp, vmap, ...) and "
                           "forward-mode AD, got one inside: this kernel has a plain backward only")  # fmt: skip


_ONCE = (
    "layer_norm: expected a backward without create_graph=True, got one with: it would lose the second "
    "derivative, which this kernel does not have"
)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, dtype: torch.dtype,
        computed: tuple[Tensor, ...] = (),
    ) -> Tensor:  # fmt: skip
        y, stats = computed or _eager_forward(x, weight, bias, eps, dtype, True)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, bias, stats)
        return y

    @staticmethod
    def backward(ctx, dy: Tensor | None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return None, None, None, None, None, None
        if forward_ad._current_level >= 0:
            _refuse_transforms(dy)
        if torch.is_grad_enabled():  # not once_differentiable, which lets a dy that needs no gradient pass
            raise RuntimeError(_ONCE)
        _, for_weight, for_bias, *_ = ctx.needs_input_grad
        backward = _recorded_backward if _compiling() or _modes() else _backward_op
        dx, dweight, dbias = backward(dy, *ctx.saved_tensors, for_weight or for_bias)
        return dx, dweight if for_weight else None, dbias if for_bias else None, None, None, None


# Function.apply, but for what that does for torch.func, which is refused: 1.5 us
_apply = super(torch.autograd.Function, _LayerNorm).apply


def _differentiable(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, dtype: torch.dtype, save: bool
) -> tuple[Tensor, Tensor]:
    """The operator for autograd: its gradient is in every graph that holds it, whoever recorded that."""
    if forward_ad._current_level >= 0 or isinstance(_transforms(), _Transform):
        _refuse_transforms(x, weight, bias)
    needed = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias))
    with torch._C._AutoDispatchBelowAutograd():
        y, stats = _forward_op(x, weight, bias, eps, dtype, save or needed)
    return _apply(x, weight, bias, eps, dtype, (y, stats)) if needed else y, stats


class _Once(torch.autograd.Function):
    """The backward's operator for autograd: in a graph, it has a derivative no more than in eager code."""

    @staticmethod
    def forward(ctx, *arguments: object) -> tuple[Tensor, ...]:
        with torch._C._AutoDispatchBelowAutograd():
            return _recorded_backward(*arguments)

    @staticmethod
    def backward(ctx, *_: Tensor) -> None:
        raise RuntimeError(_ONCE)


_library.impl("layer_norm_forward", _differentiable, "Autograd")
_library.impl("layer_norm_backward_recorded", _Once.apply, "Autograd")
# torch's default, for an operator that has no derivative, costs the host 0.3 us
_library.impl("layer_norm_forward_eager", torch.library.fallthrough_kernel, "Autograd")


# --8<-- [end:autograd]


_DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # what is most used is found first
_NUMBER = (float, numbers.Real)  # NumPy's, too; the first is found sooner
# torch autocasts layer_norm to fp32 on a GPU; we do as the installed one does
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


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """LayerNorm over the last dimension: (x - mean) / sqrt(variance + eps) * weight + bias.

    The function, and the dtype of the result, of `torch.nn.functional.layer_norm(x, (N,), weight, bias, eps)`: computed
    in fp32 and rounded once, to the dtype of x (under CUDA autocast to fp32). The variance is that of the row (divided
    by N), and is right where the mean is large beside it; a row of equal numbers becomes the bias to the bit. What
    PyTorch's has and this has not: a normalized_shape of several dimensions, fp64, double backward, forward-mode AD and
    torch.func.

    Args:
        x: [..., N], fp32, fp16 or bf16, with any strides; nested, too. Rows without unit stride are copied first.
        weight: [N], fp32, fp16 or bf16; its dtype may differ from that of x. None: all ones.
        bias: [N], likewise. None: all zeros.
        eps: added to the variance.

    Returns:
        A new contiguous tensor of the shape of x. Gradients flow to x, to weight and to bias, each in its own dtype;
        those of weight and bias are bitwise the same in every run. Where neither needs one, they cost nothing.

    Raises:
        TypeError: x, weight or bias is not a tensor of one of these dtypes; weight or bias is nested; eps is no number.
        ValueError: x has no dimension, a last one that is jagged, or more than 2^30 rows or 2^26 columns; weight or
            bias is not [N], or on another device than x; or x is on a CPU while Triton's interpreter
            (TRITON_INTERPRET=1) is off.
        RuntimeError: in a backward with create_graph=True, since there is no double backward; inside torch.func (grad,
            jvp, vmap, ...) and in forward-mode AD, which are not supported either.

    Sources: Ba, Kiros & Hinton, "Layer Normalization", 2016 (https://arxiv.org/abs/1607.06450); for the variance,
    Welford, "Note on a Method for Calculating Corrected Sums of Squares and Products", Technometrics 4(3), 1962.
    """
    if not isinstance(x, Tensor) or (dtype := x.dtype) not in _DTYPES:
        raise _wrong_type("x", x)
    if weight is not None and (not isinstance(weight, Tensor) or weight.dtype not in _DTYPES):
        raise _wrong_type("weight", weight)
    if bias is not None and (not isinstance(bias, Tensor) or bias.dtype not in _DTYPES):
        raise _wrong_type("bias", bias)
    if x.is_nested:
        return _nested(lambda t: layer_norm(t, weight, bias, eps), x)
    shape = x.shape
    if not shape:
        raise ValueError("x: expected at least one dimension, got none")
    if weight is not None and (weight.is_nested or weight.shape != (shape[-1],) or weight.device != x.device):
        _refuse_parameter("weight", weight, x)
    if bias is not None and (bias.is_nested or bias.shape != (shape[-1],) or bias.device != x.device):
        _refuse_parameter("bias", bias, x)
    if not isinstance(eps, _NUMBER):
        raise TypeError(f"eps: expected a number, got {type(eps)}")
    on_cuda = x.is_cuda
    if not on_cuda and x.is_cpu and not _INTERPRETED:
        raise ValueError("x: expected a GPU tensor, got one on the CPU (which needs TRITON_INTERPRET=1)")
    if forward_ad._current_level >= 0 or (_transforms() is not None and isinstance(_transforms(), _Transform)):
        _refuse_transforms(x, weight, bias)
    if on_cuda and _AUTOCAST and _autocast("cuda"):
        dtype = torch.float32
    needed = _grad_enabled() and (
        x.requires_grad or (weight is not None and weight.requires_grad) or (bias is not None and bias.requires_grad)
    )
    if _compiling() or _modes() or _tracing() or _included(_PRE_DISPATCH):
        return _forward_op(x, weight, bias, eps, dtype, False)[0]
    if needed:
        return _apply(x, weight, bias, eps, dtype)
    return _eager_forward(x, weight, bias, eps, dtype, False)[0]

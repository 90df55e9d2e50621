# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The Ridgepoint authors
"""Softmax in Triton, forward and backward: one file to copy. It needs torch 2.11 or newer, and its triton.

    y = exp(x - max(x)) / sum(exp(x - max(x)))    over the last dimension

Source: Milakov & Gimelshein, "Online normalizer calculation for softmax", 2018 (https://arxiv.org/abs/1805.02867),
for a maximum and a sum in one pass.

Names: M rows (all leading dimensions together) of N columns. Row indices are int64: offsets pass 2^31. The host counts
N and strides in UNITs of 8 elements where 8 divides them, for Triton to see that rows begin at aligned addresses.
"""

import functools
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import forward_ad


# Functions, because at each call Triton compares a kernel's global constants with what they were: 0.3 us for each.
@triton.constexpr_function
def _lowest():
    """Where a maximum begins: finite, so that -inf less it is no NaN."""
    return -3.4028234663852886e38


@triton.constexpr_function
def _nothing():
    """The word of a part without columns: the lowest number, and 0."""
    return -36028801313931264


@triton.constexpr_function
def _missing():
    """The word of a part that has not come: the lowest number, and a NaN, 0x7FC00001."""
    return -36028799170445311


# --8<-- [start:forward]
@triton.jit
def _exp(x):
    """tl.exp spends three more instructions on each number, for results below 2^-126: here they are 0."""
    LOG2E: tl.constexpr = 1.4426950408889634
    return tl.exp2(x * LOG2E)


@triton.jit(do_not_specialize=["x_stride", "N"])
def _forward_kernel(
    x_ptr, y_ptr, x_stride, M, N,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """ROWS short rows at a time, held in registers. Reads MN, writes MN."""
    N *= UNIT
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    inside = (rows < M)[:, None] & (cols < N)[None, :]
    x_ptr += rows[:, None] * x_stride * UNIT + cols[None, :]
    x = tl.load(x_ptr, mask=inside, other=float("-inf")).to(tl.float32)
    exps = _exp(x - tl.max(x, axis=1)[:, None])
    y = exps * (1 / tl.sum(exps, axis=1))[:, None]
    tl.store(y_ptr + rows[:, None] * N + cols[None, :], y, mask=inside)


# --8<-- [end:forward]


# --8<-- [start:tiles]
@triton.jit
def _lanes(BLOCK: tl.constexpr):
    """Eight neighbours for each thread."""
    return tl.arange(0, BLOCK // 8)[:, None] * 8 + tl.arange(0, 8)[None, :]


@triton.jit
def _load(ptr, cols, N, OTHER: tl.constexpr, POLICY: tl.constexpr, FULL: tl.constexpr = False):
    if FULL:  # needs no mask
        return tl.load(ptr + cols, eviction_policy=POLICY)
    return tl.load(ptr + cols, mask=cols < N, other=OTHER, eviction_policy=POLICY)


@triton.jit
def _pairs(ptr, N, BLOCK: tl.constexpr, FULL: tl.constexpr):
    """Eight 2-byte numbers for each thread, as four words of two; what is not there is -inf."""
    nothing: tl.constexpr = -0x007F0080 if ptr.dtype.element_ty == tl.bfloat16 else -0x03FF0400
    words = tl.arange(0, BLOCK // 8)[:, None] * 4 + tl.arange(0, 4)[None, :]
    return _load(ptr.to(tl.pointer_type(tl.int32)), words, N // 2, nothing, "", FULL)


@triton.jit
def _look(tile, after, dtype: tl.constexpr):
    """As fp32. In a second look words of two are made fp32 anew: the compiler would keep those of the first one.

    It does not know that `after`, what came of the look before, never has the bits of the integer 1.
    """
    if tile.dtype == tl.int32:
        if after is not None:
            tile ^= -(after.to(tl.int32, bitcast=True) == 1).to(tl.int32)
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
# --8<-- [start:merge]
@triton.jit
def _merge(high, total, other_high, other_total):
    """Two maxima, each with a sum of exponentials that is relative to it, as one."""
    top = tl.maximum(high, other_high)
    return top, tl.fma(total, _exp(high - top), other_total * _exp(other_high - top))


# --8<-- [end:merge]


@triton.jit
def _arrived(ptr, inside):
    """The words, each once it is not 0, or after some looks as missing."""
    POLLS: tl.constexpr = 256  # a fifth of a millisecond, where a row's parts usually wait for some microseconds
    return tl.inline_asm_elementwise(
        """{ .reg .pred p, q; .reg .b32 polls; .reg .b64 at, word;
        setp.ne.s32 q, $2, 0; mov.b64 at, $1; mov.b64 word, $3; mov.b32 polls, 0;
        again: @q ld.relaxed.gpu.global.b64 word, [at]; setp.eq.and.s64 p, word, 0, q;
        add.s32 polls, polls, 1; setp.lt.and.s32 p, polls, $5, p; @p bra again;
        setp.eq.s64 p, word, 0; selp.b64 $0, $4, word, p; }""", "=l,l,r,l,l,r",
        [ptr.to(tl.int64), inside.to(tl.int32), tl.full(ptr.shape, _nothing(), tl.int64),
         tl.full(ptr.shape, _missing(), tl.int64), tl.full(ptr.shape, POLLS, tl.int32)],
        dtype=tl.int64, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def _send(high, total, ptr):
    """The two of a part as one word of 64 bits, written and read at once: no order between writes is needed."""
    word = (high.to(tl.uint32, bitcast=True).to(tl.int64) << 32) | total.to(tl.uint32, bitcast=True).to(tl.int64)
    tl.atomic_xchg(ptr, word, sem="relaxed")
    return word


@triton.jit
def _receive(words_ptr, PARTS: tl.constexpr, SLOTS: tl.constexpr, WAIT: tl.constexpr):
    """The words of a row's parts, a slot for each thread. No word is 0, and 0 is what is there until it is written."""
    slots = tl.arange(0, SLOTS)
    if WAIT:
        return _arrived(words_ptr + slots, slots < PARTS)
    words = tl.load(words_ptr + slots, mask=slots < PARTS, other=_nothing())
    return tl.where(words == 0, _missing(), words)


@triton.jit
def _is_missing(words, part, SLOTS: tl.constexpr):
    return tl.max(((words == _missing()) & (tl.arange(0, SLOTS) == part)).to(tl.int32)) > 0


@triton.jit
def _together(words):
    """Maximum and sum of a row, from the words of its parts: a NaN if one is missing."""
    highs = (words >> 32).to(tl.uint32).to(tl.float32, bitcast=True)
    return tl.reduce((highs, words.to(tl.uint32).to(tl.float32, bitcast=True)), 0, _merge)


# --8<-- [end:exchange]


# --8<-- [start:missing]
@triton.jit
def _kept(x_ptr, tile, left, BLOCK: tl.constexpr, PACKED: tl.constexpr, WHOLE: tl.constexpr):
    """A tile of a part of which `left` columns are there."""
    x_ptr, left = x_ptr + tile * BLOCK, left - tile * BLOCK
    if PACKED:
        return _pairs(x_ptr, left, BLOCK, WHOLE)
    else:  # Triton wants it
        return _load(x_ptr, _lanes(BLOCK), left, float("-inf"), "", WHOLE)


@triton.jit
def _part_from_memory(x_ptr, left, TILES: tl.constexpr, BLOCK: tl.constexpr, PACKED: tl.constexpr):
    """Maximum and sum of a part that another program has: the same operations in the same order, so the same bits."""
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    tiles = tl.minimum(tl.cdiv(left, BLOCK), TILES)  # a loop of known length would be unrolled, into more registers
    peak = tl.full([BLOCK // 8, 8], float("-inf"), tl.float32)
    for tile in range(tiles):
        peak = tl.maximum(peak, _look(_kept(x_ptr, tile, left, BLOCK, PACKED, False), None, dtype))
    high = tl.maximum(tl.max(peak, axis=1), _lowest())
    sums = tl.zeros([BLOCK // 8, 8], tl.float32)
    for tile in range(tiles):
        sums += _exp(_look(_kept(x_ptr, tile, left, BLOCK, PACKED, False), None, dtype) - high[:, None])
    return tl.reduce((high, tl.sum(sums, axis=1)), 0, _merge)


@triton.jit
def _row_from_memory(
    x_ptr, words_ptr, words, part, left,
    PARTS: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr, SLOTS: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Maximum and sum of a row of which parts are missing; whoever comes later finds them."""
    for other in range(PARTS):
        if _is_missing(words, other, SLOTS):
            to = (other - part) * (TILES * BLOCK)
            high, total = _part_from_memory(x_ptr + to, left - to, TILES, BLOCK, PACKED)
            words = tl.where(tl.arange(0, SLOTS) == other, _send(high, total, words_ptr + other), words)
    return _together(words)


# --8<-- [end:missing]


# --8<-- [start:forward-row]
@triton.constexpr_function
def _is_whole(tile, PARTS, TILES, FULL):
    """Whether no row ends in the tile. Of more than 8 tiles the last three may be empty."""
    return FULL or (PARTS == 1 and tile < TILES - (4 if TILES > 8 else 1))


@triton.jit
def _all_kept(
    x_ptr, left, PARTS: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr, PACKED: tl.constexpr, FULL: tl.constexpr
):
    tiles = ()
    for tile in tl.static_range(TILES):
        tiles = tiles + (_kept(x_ptr, tile, left, BLOCK, PACKED, _is_whole(tile, PARTS, TILES, FULL)),)
    return tiles


# --8<-- [start:exponentials]
@triton.jit
def _exponentials(tiles, high, dtype: tl.constexpr, TILES: tl.constexpr):
    """Relative to each thread's maximum, and their sums: added up on the way, or the compiler keeps all of them."""
    exps = ()
    sums = tl.zeros([tiles[0].shape[0], 8], tl.float32)
    for tile in tl.static_range(TILES):
        exps = exps + (_exp(_look(tiles[tile], high[:, None], dtype) - high[:, None]),)
        sums += exps[tile]
    return exps, sums


# --8<-- [end:exponentials]


@triton.jit(do_not_specialize=["x_stride"])
def _forward_row_kernel(
    x_ptr, y_ptr, words_ptr, x_stride, M, N,
    PARTS: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr, SLOTS: tl.constexpr, PACKED: tl.constexpr,
    AHEAD: tl.constexpr, FULL: tl.constexpr, WAIT: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """A row, or one of its PARTS, held in registers as TILES. Reads MN, writes MN.

    PACKED tiles stay in the two bytes a number in which they come, and their exponentials are computed twice. A thread
    has a maximum of its own: one meeting of all is enough, for maxima and sums together. What a program AHEAD rows
    later needs, which cannot start yet, goes into the L2 cache.
    """
    N *= UNIT
    stride = tl.cast(x_stride, tl.int64) * UNIT
    part = tl.program_id(0) % PARTS
    row = (tl.program_id(0) // PARTS).to(tl.int64)
    start = part * (TILES * BLOCK)
    left = N - start  # all that follows counts from the part's start
    x_ptr += row * stride + start
    y_ptr += row * N + start
    tiles = _all_kept(x_ptr, left, PARTS, TILES, BLOCK, PACKED, FULL)
    if AHEAD:
        for tile in tl.static_range(TILES):
            eights = tile * BLOCK + tl.arange(0, BLOCK // 8) * 8  # one for each thread
            _prefetch(x_ptr + AHEAD * stride + eights, (eights < left) & (row + AHEAD < M))
    # --8<-- [start:meeting]
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    peak = _look(tiles[0], None, dtype)
    for tile in tl.static_range(1, TILES):
        peak = tl.maximum(peak, _look(tiles[tile], None, dtype))
    high = tl.maximum(tl.max(peak, axis=1), _lowest())  # finite, for -inf - -inf would be NaN
    exps, sums = _exponentials(tiles, high, dtype, TILES)
    top, total = tl.reduce((high, tl.sum(sums, axis=1)), 0, _merge)
    # --8<-- [end:meeting]
    if PARTS > 1:
        words_ptr += row * PARTS
        _send(top, total, words_ptr + part)
        words = _receive(words_ptr, PARTS, SLOTS, WAIT)
        top, total = _together(words)
        if total != total:  # a part is missing, or there is a NaN in the row
            top, total = _row_from_memory(x_ptr, words_ptr, words, part, left, PARTS, TILES, BLOCK, SLOTS, PACKED)
            tiles = _all_kept(x_ptr, left, PARTS, TILES, BLOCK, PACKED, FULL)  # their registers held other parts
            exps, _ = _exponentials(tiles, high, dtype, TILES)
    scale = 1 / total
    cols = _lanes(BLOCK)
    for tile in tl.static_range(TILES):
        if PACKED:
            y = _exp(_look(tiles[tile], total, dtype) - top) * scale
        else:
            y = exps[tile] * (_exp(high - top) * scale)[:, None]
        if _is_whole(tile, PARTS, TILES, FULL):
            tl.store(y_ptr + tile * BLOCK + cols, y, cache_modifier=".cs")
        else:
            tl.store(y_ptr + tile * BLOCK + cols, y, mask=cols < left - tile * BLOCK, cache_modifier=".cs")


# --8<-- [end:forward-row]


# --8<-- [start:forward-widest]
@triton.jit
def _take_in(x, high, total):
    """The tile x into each lane's maximum and its sum of exp(x - maximum); a lane takes neighbours, one thread's."""
    x = tl.reshape(x.to(tl.float32), [high.shape[0], x.shape[0] // high.shape[0]])
    higher = tl.maximum(high, tl.max(x, axis=1))
    return higher, total * _exp(high - higher) + tl.sum(_exp(x - higher[:, None]), axis=1)


@triton.jit(do_not_specialize=["x_stride", "N"])
def _forward_widest_kernel(
    x_ptr, y_ptr, x_stride, N,
    BLOCK: tl.constexpr, LANES: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """A row of any length, looked at twice. The second look, from the end, meets what the cache has last seen."""
    N *= UNIT
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_stride * UNIT
    y_ptr += row * N
    high, total = tl.full([LANES], _lowest(), tl.float32), tl.zeros([LANES], tl.float32)
    for start in range(0, N, BLOCK):
        x = _load(x_ptr, start + tl.arange(0, BLOCK), N, float("-inf"), "evict_last")
        high, total = _take_in(x, high, total)
    top = tl.max(high)  # the one exchange between threads
    scale = 1 / tl.sum(total * _exp(high - top))
    last = (N - 1) // BLOCK * BLOCK
    for start in range(0, N, BLOCK):
        cols = last - start + tl.arange(0, BLOCK)
        x = _load(x_ptr, cols, N, float("-inf"), "evict_first").to(tl.float32)
        tl.store(y_ptr + cols, _exp(x - top) * scale, mask=cols < N)


# --8<-- [end:forward-widest]


# The backward: dx = y * (dy - sum(dy * y)), the sum over the row.


# --8<-- [start:backward]
@triton.jit(do_not_specialize=["dy_stride", "N"])
def _backward_kernel(
    dy_ptr, y_ptr, dx_ptr, dy_stride, M, N,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """ROWS short rows at a time, held in registers. Reads 2MN, writes MN."""
    N *= UNIT
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    inside = (rows < M)[:, None] & (cols < N)[None, :]
    dy = tl.load(dy_ptr + rows[:, None] * dy_stride * UNIT + cols[None, :], mask=inside, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + rows[:, None] * N + cols[None, :], mask=inside, other=0.0).to(tl.float32)
    dx = y * (dy - tl.sum(dy * y, axis=1)[:, None])
    tl.store(dx_ptr + rows[:, None] * N + cols[None, :], dx, mask=inside)


# --8<-- [end:backward]


# --8<-- [start:backward-row]
@triton.jit
def _both(dy_ptr, y_ptr, cols, N, TILES: tl.constexpr, BLOCK: tl.constexpr):
    dys, ys = (), ()
    for tile in tl.static_range(TILES):
        dys = dys + (_load(dy_ptr, cols + tile * BLOCK, N, 0.0, ""),)
        ys = ys + (_load(y_ptr, cols + tile * BLOCK, N, 0.0, ""),)
    return dys, ys


@triton.jit
def _products_from_memory(dy_ptr, y_ptr, start, N, TILES: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of a part that another program has: the same operations in the same order, so the same bits."""
    products = tl.zeros([BLOCK], tl.float32)
    for tile in range(tl.minimum(tl.cdiv(N - start, BLOCK), TILES)):
        cols = start + tile * BLOCK + tl.arange(0, BLOCK)
        dy, y = _load(dy_ptr, cols, N, 0.0, "").to(tl.float32), _load(y_ptr, cols, N, 0.0, "").to(tl.float32)
        products = tl.fma(dy, y, products)
    return tl.sum(products)


@triton.jit(do_not_specialize=["dy_stride", "N"])
def _backward_row_kernel(
    dy_ptr, y_ptr, dx_ptr, words_ptr, dy_stride, M, N,
    PARTS: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr, SLOTS: tl.constexpr, WAIT: tl.constexpr,
    UNIT: tl.constexpr,
):  # fmt: skip
    """A row, or one of its PARTS, held in registers as TILES. Reads 2MN, writes MN."""
    N *= UNIT
    part = tl.program_id(0) % PARTS
    row = (tl.program_id(0) // PARTS).to(tl.int64)
    dy_ptr += row * (tl.cast(dy_stride, tl.int64) * UNIT)
    y_ptr += row * N
    dx_ptr += row * N
    cols = part * (TILES * BLOCK) + tl.arange(0, BLOCK)
    dys, ys = _both(dy_ptr, y_ptr, cols, N, TILES, BLOCK)
    products = tl.zeros([BLOCK], tl.float32)
    for tile in tl.static_range(TILES):
        products = tl.fma(dys[tile].to(tl.float32), ys[tile].to(tl.float32), products)
    total = tl.sum(products)
    if PARTS > 1:
        words_ptr += row * PARTS
        none = tl.full([], _lowest(), tl.float32)
        _send(none, total, words_ptr + part)
        words = _receive(words_ptr, PARTS, SLOTS, WAIT)
        total = _together(words)[1]
        if total != total:  # a part is missing, or there is a NaN in the row
            for other in range(PARTS):
                if _is_missing(words, other, SLOTS):
                    total = _products_from_memory(dy_ptr, y_ptr, other * (TILES * BLOCK), N, TILES, BLOCK)
                    words = tl.where(tl.arange(0, SLOTS) == other, _send(none, total, words_ptr + other), words)
            total = _together(words)[1]
            dys, ys = _both(dy_ptr, y_ptr, cols, N, TILES, BLOCK)  # their registers held other parts
    for tile in tl.static_range(TILES):
        # + 0.0: converted by the same expression as above, y would be kept as fp32, in twice the registers
        dx = (ys[tile] + 0.0).to(tl.float32) * (dys[tile].to(tl.float32) - total)
        tl.store(dx_ptr + cols + tile * BLOCK, dx, mask=cols + tile * BLOCK < N)


# --8<-- [end:backward-row]


# --8<-- [start:backward-widest]
@triton.jit(do_not_specialize=["dy_stride", "N"])
def _backward_widest_kernel(
    dy_ptr, y_ptr, dx_ptr, dy_stride, N,
    BLOCK: tl.constexpr, LANES: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """A row of any length, looked at twice."""
    N *= UNIT
    row = tl.program_id(0).to(tl.int64)
    dy_ptr += row * dy_stride * UNIT
    y_ptr += row * N
    dx_ptr += row * N
    total = tl.zeros([LANES], tl.float32)
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        dy = _load(dy_ptr, cols, N, 0.0, "evict_last").to(tl.float32)
        product = dy * _load(y_ptr, cols, N, 0.0, "evict_last").to(tl.float32)
        total += tl.sum(tl.reshape(product, [LANES, BLOCK // LANES]), axis=1)
    total = tl.sum(total)
    last = (N - 1) // BLOCK * BLOCK
    for start in range(0, N, BLOCK):
        cols = last - start + tl.arange(0, BLOCK)
        dy = _load(dy_ptr, cols, N, 0.0, "evict_first").to(tl.float32)
        y = _load(y_ptr, cols, N, 0.0, "evict_first").to(tl.float32)
        tl.store(dx_ptr + cols, y * (dy - total), mask=cols < N)


# --8<-- [end:backward-widest]


# --8<-- [start:launch]
# Chosen by row length from sweeps on an H100 and an H200; nothing is tuned at a user's first call. Threads, not
# warps, since an AMD warp has 64. A thread has 16 bytes of a tile or a multiple, and a lane is 16 bytes.
@functools.cache
def _device(device: torch.device) -> tuple[int, int]:
    """Multiprocessors, and threads a warp."""
    if device.type == "cpu":  # the interpreter
        return 2, 32
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, properties.warp_size


def _options(device: torch.device, threads: int, **constants: int | str) -> dict[str, int | str]:
    return {**constants, "num_warps": threads // _device(device)[1]}


def _short(N: int, device: torch.device) -> dict[str, int]:
    block = triton.next_power_of_2(N)
    return _options(device, 128, ROWS=2048 // block, BLOCK=block)


def _looks(bits: int, device: torch.device) -> dict[str, int]:
    return _options(device, 1024, BLOCK=8192, LANES=8192 * bits // 128)


def _row(N: int, device: torch.device, parts: int, threads: int, tile: int, **more: int) -> dict[str, int]:
    """A row in so many parts; of a part so many columns are a tile. A slot for each thread."""
    tiles = -(-N // (parts * tile))
    if tiles > (4 if parts > 1 else 8):  # each number of tiles is compiled anew
        tiles = max(tiles + tiles % 2, 12 if tiles > 8 else 0)
    return _options(device, threads, PARTS=parts, TILES=tiles, BLOCK=tile, SLOTS=threads, **more)


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


def _alike(registers: int) -> dict[str, int]:
    """Where parts are missing the compiler would take more registers, and fuse other products with other sums than
    where none is: the bits would depend on who computed a part."""
    return {"maxnreg": registers, "enable_fp_fusion": False}


@functools.cache
def _forward_launch(N: int, bits: int, device: torch.device) -> dict[str, int]:
    """With ROWS: several rows a program; with PARTS: a row, or a part of it; else: two looks at a row."""
    if N <= 1024:
        return _short(N, device)
    multiprocessors, warp = _device(device)
    packed = bits == 16 and N > 16384
    parts = _parts(N, 2**18 // bits, device) if N > 32768 else 1
    if not parts:
        return _looks(bits, device)
    # in L2 there is room for as many rows as are at work, or for a few MiB of what comes next
    if N > 32768 or packed:
        threads, ahead = 256, 2**25 // (bits * triton.next_power_of_2(N))
    else:
        threads = 256 if 8192 < N <= 10240 else max(128, triton.next_power_of_2(N) // 32)
        ahead = multiprocessors * (1024 // threads) * 16 // bits
    if warp != 32 or (N > 8192 and parts == 1 and not packed):
        ahead = 0
    alike = _alike(48 if packed else 64) if parts > 1 else {}
    return _row(N, device, parts, threads, 8 * threads, PACKED=packed, AHEAD=ahead, **alike)


@functools.cache
def _backward_launch(N: int, bits: int, device: torch.device) -> dict[str, int]:
    if N <= 1024:
        return _short(N, device)
    if 8192 < N <= 10240:
        return _row(N, device, 1, 256, 2048)
    if N <= 16384 or (bits == 16 and N <= 32768):
        block = triton.next_power_of_2(N)
        threads = 1024 if N > 16384 else max(128, min(512, block // 16))
        return _row(N, device, 1, threads, block)
    parts = _parts(N, 2**17 // bits, device)
    alike = _alike(48 if bits == 32 else 64)
    if parts:
        return _row(N, device, parts, 256, 4096, **alike)
    # Threads that hold copies of a sum must have it to the bit. Fused, each would round the other's products alone.
    return {**_looks(bits, device), "enable_fp_fusion": False}


# --8<-- [end:launch]


_MOST_ROWS = _MOST_COLUMNS = 2**30  # indices of 32 bits have room for the largest tile beyond


def _checked(M: int, N: int) -> None:
    if M > _MOST_ROWS or N > _MOST_COLUMNS:
        raise ValueError(f"x: expected at most {_MOST_ROWS} rows and {_MOST_COLUMNS} columns, got {M} x {N}")


def _rows(t: Tensor) -> Tensor:
    """As M x N with neighbouring columns: a view where the strides allow one."""
    rows = t if t.dim() == 2 else t.reshape(-1, t.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


_INTERPRETED = not isinstance(_forward_kernel, triton.runtime.JITFunction)
_PTX = not (_INTERPRETED or torch.version.hip)


def _words(M: int, parts: int, device: torch.device) -> Tensor | None:
    """What the parts of each row exchange."""
    return None if parts == 1 else torch.zeros((M, parts), dtype=torch.int64, device=device)


def _forward_fake(x: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)


def _forward(x: Tensor, dtype: torch.dtype) -> Tensor:
    y = _forward_fake(x, dtype)
    if x.numel() == 0:
        return y
    x = _rows(x)
    M, N = x.shape
    _checked(M, N)
    stride = x.stride(0)
    unit = 1 if N % 8 or stride % 8 else 8
    options = {"UNIT": unit, **_forward_launch(N, 8 * x.element_size(), x.device)}
    with torch.cuda.device_of(x):  # triton launches on the current device
        if "ROWS" in options:
            _forward_kernel[(-(-M // options["ROWS"]),)](x, y, stride // unit, M, N // unit, **options)
        elif "PARTS" in options:
            options["AHEAD"] *= _PTX
            if options["PACKED"] and (unit == 1 or x.data_ptr() % 4):
                options["PACKED"] = False
                options.pop("maxnreg", None)  # the limit of packed tiles
            full = N % (options["PARTS"] * options["TILES"] * options["BLOCK"]) == 0
            full &= options["PARTS"] == 1 or N & (N - 1) == 0  # each full number of parts would be compiled anew
            words = _words(M, options["PARTS"], x.device)
            _forward_row_kernel[(M * options["PARTS"],)](
                x, y, words, stride // unit, M, N // unit, FULL=full, WAIT=_PTX, **options
            )
        else:
            _forward_widest_kernel[(M,)](x, y, stride // unit, N // unit, **options)
    return y


def _backward_fake(dy: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(y, dtype=dtype, memory_format=torch.contiguous_format)


def _backward(dy: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    dx = _backward_fake(dy, y, dtype)
    if y.numel() == 0:
        return dx
    dy, y = _rows(dy), y.contiguous()
    M, N = dy.shape
    stride = dy.stride(0)
    unit = 1 if N % 8 or stride % 8 else 8
    options = {"UNIT": unit, **_backward_launch(N, 8 * y.element_size(), y.device)}
    with torch.cuda.device_of(y):
        if "ROWS" in options:
            _backward_kernel[(-(-M // options["ROWS"]),)](dy, y, dx, stride // unit, M, N // unit, **options)
        elif "PARTS" in options:
            words = _words(M, options["PARTS"], y.device)
            _backward_row_kernel[(M * options["PARTS"],)](
                dy, y, dx, words, stride // unit, M, N // unit, WAIT=_PTX, **options
            )
        else:
            _backward_widest_kernel[(M,)](dy, y, dx, stride // unit, N // unit, **options)
    return dx


# define and impl cost the host less per call than custom_op; fake tensors, torch.compile and opcheck work as well
_namespace = __name__.replace(".", "_")  # another copy of this file, in another package, has another
_library = torch.library.Library(_namespace, "FRAGMENT")
_FORWARD, _BACKWARD = "(Tensor x, ScalarType dtype) -> Tensor", "(Tensor dy, Tensor y, ScalarType dtype) -> Tensor"
for _name, _schema, _function, _meta in (
    ("softmax_forward", _FORWARD, _forward, _forward_fake),
    ("softmax_forward_eager", _FORWARD, _forward, _forward_fake),  # without a derivative: a Function has it
    ("softmax_backward", _BACKWARD, _backward, _backward_fake),
    ("softmax_backward_recorded", _BACKWARD, _backward, _backward_fake),  # refuses to be differentiated
):
    _library.define(_name + _schema)
    for _key in ("CUDA", "CPU"):  # AMD's GPUs are "CUDA" to torch; the CPU is for triton's interpreter
        _library.impl(_name, _function, _key)
    torch.library.register_fake(f"{_namespace}::{_name}", _meta, lib=_library)
_forward_op = getattr(torch.ops, _namespace).softmax_forward.default
_eager_forward = getattr(torch.ops, _namespace).softmax_forward_eager.default._op  # __call__ costs 0.3 us
_backward_op = getattr(torch.ops, _namespace).softmax_backward.default
_recorded_backward = getattr(torch.ops, _namespace).softmax_backward_recorded.default


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
        raise RuntimeError("softmax: expected a call outside torch.func (grad, jvp, vmap, ...) and "
                           "forward-mode AD, got one inside: this kernel has a plain backward only")  # fmt: skip


_ONCE = (
    "softmax: expected a backward without create_graph=True, got one with: it would lose the second derivative, "
    "which this kernel does not have"
)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, dtype: torch.dtype, computed: Tensor | None = None) -> Tensor:
        y = _eager_forward(x, dtype) if computed is None else computed
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(y)  # not x: y is all that the backward needs
        ctx.dtype = x.dtype
        return y

    @staticmethod
    def backward(ctx, dy: Tensor | None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return None, None, None
        if forward_ad._current_level >= 0:
            _refuse_transforms(dy)
        if torch.is_grad_enabled():  # not once_differentiable, which lets a dy that needs no gradient pass
            raise RuntimeError(_ONCE)
        backward = _recorded_backward if _compiling() or _modes() else _backward_op
        return backward(dy, *ctx.saved_tensors, ctx.dtype), None, None


# Function.apply, but for what that does for torch.func, which is refused: 1.5 us
_apply = super(torch.autograd.Function, _Softmax).apply


def _differentiable(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The operator for autograd: its gradient is in every graph that holds it, whoever recorded that."""
    if forward_ad._current_level >= 0 or isinstance(_transforms(), _Transform):
        _refuse_transforms(x)
    with torch._C._AutoDispatchBelowAutograd():
        y = _forward_op(x, dtype)
    return _apply(x, dtype, y) if torch.is_grad_enabled() and x.requires_grad else y


class _Once(torch.autograd.Function):
    """The backward's operator for autograd: in a graph, it has a derivative no more than in eager code."""

    @staticmethod
    def forward(ctx, *arguments: object) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            return _recorded_backward(*arguments)

    @staticmethod
    def backward(ctx, *_: Tensor) -> None:
        raise RuntimeError(_ONCE)


_library.impl("softmax_forward", _differentiable, "Autograd")
_library.impl("softmax_backward_recorded", _Once.apply, "Autograd")
# torch's default, for an operator that has no derivative, costs the host 0.3 us
_library.impl("softmax_forward_eager", torch.library.fallthrough_kernel, "Autograd")


_DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # what is most used is found first
# torch autocasts softmax to fp32 on a GPU; we do as the installed one does
_AUTOCAST = torch._C._dispatch_has_kernel_for_dispatch_key("aten::softmax.int", "AutocastCUDA")


def _nested(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Of a jagged tensor, the function of its values; of a strided one, of its tensors one by one."""
    if x.layout != torch.jagged:
        return torch.nested.as_nested_tensor([function(t) for t in x.unbind()])
    if x._ragged_idx == x.dim() - 1:
        if x.dim() > 2 or x.lengths() is not None:
            raise ValueError("x: expected rows one after the other, got a jagged tensor whose last dimension is ragged "
                             "and not the second, or with gaps in it")  # fmt: skip
        y = torch.cat([function(row) for row in x.values().split(x.offsets().diff().tolist())])
        return torch.nested.nested_tensor_from_jagged(y, x.offsets())
    y = function(x.values())
    return torch.nested.nested_tensor_from_jagged(y, x.offsets(), x.lengths(), x._ragged_idx)


def _wrong_type(name: str, t: object) -> TypeError:
    got = t.dtype if isinstance(t, Tensor) else type(t)
    return TypeError(f"{name}: expected an fp32, fp16 or bf16 tensor, got {got}")


def softmax(x: Tensor) -> Tensor:
    """Softmax over the last dimension: exp(x - max) / sum(exp(x - max)).

    The function, and the dtypes, of `torch.nn.functional.softmax(x, -1)`: computed in fp32 and rounded once, to the
    dtype of x (under CUDA autocast to fp32, where the installed torch does so). As there, an entry of -inf becomes 0,
    and a row with a NaN, with +inf or of nothing but -inf becomes NaN. What F.softmax has and this has not: other
    dimensions than the last (dim), the dtype argument, fp64, a double backward, torch.func and forward-mode AD.

    Args:
        x: [..., N], fp32, fp16 or bf16, with any strides; nested, too. Rows without unit stride are copied first.

    Returns:
        A new contiguous tensor of the shape of x. The gradient flows to x, in its dtype; the forward keeps for it the
        result, and not x.

    Raises:
        TypeError: x is not a tensor of one of these dtypes.
        ValueError: x has no dimension, a last one that is jagged beside others, or more than 2^30 rows or columns, or
            is on a CPU while Triton's interpreter (TRITON_INTERPRET=1) is off.
        RuntimeError: in a backward with create_graph=True, since there is no double backward; inside torch.func (grad,
            jvp, vmap, ...) and in forward-mode AD, which are not supported either.

    Source: Milakov & Gimelshein, "Online normalizer calculation for softmax", 2018 (https://arxiv.org/abs/1805.02867).
    """
    if not isinstance(x, Tensor) or (dtype := x.dtype) not in _DTYPES:
        raise _wrong_type("x", x)
    if x.is_nested:
        return _nested(softmax, x)
    if x.dim() == 0:
        raise ValueError("x: expected at least one dimension, got none")
    on_cuda = x.is_cuda
    if not on_cuda and x.is_cpu and not _INTERPRETED:
        raise ValueError("x: expected a GPU tensor, got one on the CPU (which needs TRITON_INTERPRET=1)")
    if forward_ad._current_level >= 0 or (_transforms() is not None and isinstance(_transforms(), _Transform)):
        _refuse_transforms(x)
    if on_cuda and _AUTOCAST and _autocast("cuda"):
        dtype = torch.float32
    needed = _grad_enabled() and x.requires_grad
    if _compiling() or _modes() or _tracing() or _included(_PRE_DISPATCH):
        return _forward_op(x, dtype)
    if needed:
        return _apply(x, dtype)
    return _eager_forward(x, dtype)

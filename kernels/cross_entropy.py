# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The Ridgepoint authors
"""Cross-entropy in Triton, forward and backward: one file to copy. It needs torch 2.11 or newer, and its triton.

    loss = log(sum(exp(x))) - (1 - s) * x[target] - s * mean(x)             of a row x of logits; s: label smoothing
    dx   = (softmax(x) - (1 - s) * [column is target] - s / N) * factor     factor: of the row, from the loss's gradient

The forward writes dx too, while the row is in cache. It does not know the loss's gradient yet and takes the one seen
last; the backward writes the rows anew for which that was wrong. No result depends on the guess, only the time does.

Source: Milakov & Gimelshein, "Online normalizer calculation for softmax", 2018 (https://arxiv.org/abs/1805.02867).

Names: M rows of N logits. Row indices are int64: offsets pass 2^31. N and the stride come in units of UNIT elements,
since Triton widens accesses where 16 divides a number, and 8 elements would do.
"""

import functools
import numbers

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import forward_ad

_COUNTED = 1024  # targets counted at a time
_COUNTERS = 32  # programs that count them, at most


@triton.constexpr_function
def _lowest():
    """Where a maximum begins: finite, so that -inf less it is no NaN. Each launch compares constants, not functions."""
    return -3.4028234663852886e38


# --8<-- [start:prepare]
# The notes of a call, int32: the bits of its guess, how many programs are done, how many targets count (in shares).
@triton.jit
def _prepare_kernel(
    target_ptr, guess_ptr, notes_ptr, target_stride, M, ignore_index,
    COUNTED: tl.constexpr = _COUNTED, COUNTERS: tl.constexpr = _COUNTERS,
):  # fmt: skip
    """Reads the guess, once for all rows, and counts targets: a mean's gradient divides by their number."""
    program = tl.program_id(0)
    counted = tl.zeros([COUNTED], tl.int32)
    for start in range(program * COUNTED, M, COUNTERS * COUNTED):
        rows = tl.cast(start, tl.int64) + tl.arange(0, COUNTED)
        target = tl.load(target_ptr + rows * target_stride, mask=rows < M, other=ignore_index)
        counted += (target != ignore_index).to(tl.int32)
    tl.store(notes_ptr + 2 + program, tl.sum(counted))
    if program == 0:
        share = tl.arange(0, COUNTERS)
        tl.store(notes_ptr + 2 + share, 0, mask=share >= tl.num_programs(0))
        tl.store(notes_ptr + 1, 0)
        guess = 0.0 if guess_ptr is None else tl.load(guess_ptr)
        tl.store(notes_ptr, tl.cast(guess, tl.float32).to(tl.int32, bitcast=True))


@triton.jit
def _count(notes_ptr, COUNTERS: tl.constexpr = _COUNTERS):
    return tl.sum(tl.load(notes_ptr + 2 + tl.arange(0, COUNTERS))).to(tl.float32)


# --8<-- [end:prepare]


# --8<-- [start:gradient]
@triton.jit
def _exp(x):
    """One instruction and a product; tl.exp takes three more, for results below the smallest normal number."""
    return tl.exp2(x * 1.4426950408889634)


# Every gradient comes from these lines, so that it has the same bits whether it was guessed or not.
@triton.jit
def _factor(dloss, notes_ptr, MEAN: tl.constexpr):
    return dloss / _count(notes_ptr) if MEAN else dloss


@triton.jit
def _gradient(e, total, factor, N, smoothing):
    """Of all columns but the target's, from exponentials below the maximum."""
    less = tl.where(smoothing == 0, 0.0, smoothing / N * factor)  # 0 * inf would be NaN
    return e * (factor / total) - less


@triton.jit
def _gradient_at_target(e, total, factor, N, smoothing):
    return (e / total - (1.0 - smoothing + smoothing / N)) * factor


# --8<-- [end:gradient]


# --8<-- [start:loss]
@triton.jit
def _loss(x_target, base, top, total, above, N, smoothing, SMOOTH: tl.constexpr):
    """`above` is the sum of x - base: numbers that stay small where all logits are large."""
    loss = top - x_target + tl.log(total)
    if SMOOTH:
        loss = top - base + tl.log(total) - (1.0 - smoothing) * (x_target - base) - smoothing / N * above
    return loss


@triton.jit
def _finish(loss, share_ptr, notes_ptr, loss_ptr, MEAN: tl.constexpr):
    """The program that comes last adds what all have left, in a fixed order: the same bits in every run."""
    programs = tl.num_programs(0)
    tl.store(share_ptr + tl.program_id(0), loss)
    tl.debug_barrier()
    if tl.atomic_add(notes_ptr + 1, 1) == programs - 1:
        ADDED: tl.constexpr = 1024  # losses at a time
        losses = tl.zeros([ADDED], tl.float32)
        for start in range(0, programs, ADDED):
            index = start + tl.arange(0, ADDED)
            losses += tl.load(share_ptr + index, mask=index < programs, other=0.0, cache_modifier=".cg")
        total = tl.sum(losses)
        tl.store(loss_ptr, total / _count(notes_ptr) if MEAN else total)


# --8<-- [end:loss]


# --8<-- [start:short]
@triton.jit
def _load_rows(
    logits_ptr, target_ptr, rows, cols, x_stride, target_stride, M, N, ignore_index, UNIT: tl.constexpr
):  # fmt: skip
    target = tl.load(target_ptr + rows * target_stride, mask=rows < M, other=ignore_index)
    x_ptr = logits_ptr + rows * x_stride * UNIT
    x = tl.load(x_ptr[:, None] + cols[None, :], mask=(rows < M)[:, None] & (cols < N)[None, :], other=float("-inf"))
    counts, known = target != ignore_index, (target >= 0) & (target < N)
    x_target = tl.load(x_ptr + target, mask=counts & known, other=float("nan"))
    return target, counts, known, x.to(tl.float32), x_target.to(tl.float32)


@triton.jit
def _write_rows(e, dx_ptr, rows, cols, target, counts, known, e_target, total, factor, M, N, smoothing):
    factor = tl.where(known, factor, float("nan"))  # no such class
    dx = _gradient(e, total[:, None], factor[:, None], N, smoothing)
    at_target = _gradient_at_target(e_target, total, factor, N, smoothing)
    dx = tl.where(cols[None, :] == target[:, None], at_target[:, None], dx)
    inside = (rows < M)[:, None] & (cols < N)[None, :]
    tl.store(dx_ptr + rows[:, None] * N + cols[None, :], tl.where(counts[:, None], dx, 0.0), mask=inside)


@triton.jit(do_not_specialize=["x_stride", "N"])
def _forward_kernel(
    logits_ptr, target_ptr, notes_ptr, state_ptr, share_ptr, loss_ptr, dx_ptr,
    x_stride, target_stride, M, N, ignore_index, smoothing,
    MEAN: tl.constexpr, SMOOTH: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """ROWS short rows at a time, held in registers. Reads MN, writes MN."""
    N *= UNIT
    smoothing = tl.cast(smoothing, tl.float32)
    cols = tl.arange(0, BLOCK)
    losses = tl.zeros([ROWS], tl.float32)
    factor = _factor(tl.load(notes_ptr).to(tl.float32, bitcast=True), notes_ptr, MEAN)
    for start in tl.range(tl.program_id(0) * ROWS, M, tl.num_programs(0) * ROWS, num_stages=STAGES):
        rows = tl.cast(start, tl.int64) + tl.arange(0, ROWS)
        target, counts, known, x, x_target = _load_rows(
            logits_ptr, target_ptr, rows, cols, x_stride, target_stride, M, N, ignore_index, UNIT
        )
        top = tl.maximum(tl.max(x, axis=1), _lowest())
        e = _exp(x - top[:, None])
        total = tl.sum(e, axis=1)
        base = tl.where(tl.abs(x_target) < float("inf"), x_target, 0.0)
        above = tl.sum(tl.where((cols < N)[None, :], x - base[:, None], 0.0), axis=1) if SMOOTH else total
        loss = tl.where(counts, _loss(x_target, base, top, total, above, N, smoothing, SMOOTH), 0.0)
        if state_ptr is not None:
            tl.store(state_ptr + rows, top, mask=rows < M)
            tl.store(state_ptr + M + rows, total, mask=rows < M)
        if dx_ptr is not None:
            e_target, factors = _exp(x_target - top), tl.full([ROWS], factor, tl.float32)
            _write_rows(e, dx_ptr, rows, cols, target, counts, known, e_target, total, factors, M, N, smoothing)
        if share_ptr is None:
            tl.store(loss_ptr + rows, loss, mask=rows < M)
        losses += loss
    if share_ptr is not None:
        _finish(tl.sum(losses), share_ptr, notes_ptr, loss_ptr, MEAN)


# --8<-- [end:short]


# A wide row is worked on in tiles, from place 0 on. Where 8 does not divide N, a row may begin anywhere. Then place 0
# is the multiple of 8 before it, column 0 is at place `first`, and the tiles have the places from 8 to `high`, also a
# multiple of 8: their accesses are 16 bytes wide. The few columns at either end are `edges`, in a tile of their own.


# --8<-- [start:tiles]
@triton.jit
def _places(row, N, UNIT: tl.constexpr):
    """Where place 0 of a dense row is; first and high."""
    if UNIT > 1:
        return row * N, 0, N
    begin = row * N // 8 * 8
    first = (row * N - begin).to(tl.int32)
    return begin, first, (first + N) // 8 * 8


@triton.jit
def _inside(place, high, UNIT: tl.constexpr):
    return place < high if UNIT > 1 else (place >= 8) & (place < high)


@triton.jit
def _edges(first, high, N):
    """The places, and which of them are columns."""
    lane = tl.arange(0, 16)
    place = tl.where(lane < 8, lane, high - 8 + lane)
    return place, (place >= first) & (place < first + N)


@triton.jit
def _look(
    x, place, high, base, top, total, above,
    SMOOTH: tl.constexpr, UNIT: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One more tile: a maximum, and the sum of exponentials below it, for every GROUP columns (one thread's)."""
    SHAPE: tl.constexpr = [x.shape[0] // GROUP, GROUP]
    x = x.to(tl.float32)
    groups = tl.reshape(x, SHAPE)
    higher = tl.maximum(top, tl.max(groups, axis=1))
    total = total * _exp(top - higher) + tl.sum(_exp(groups - higher[:, None]), axis=1)
    if SMOOTH:
        above += tl.sum(tl.reshape(tl.where(_inside(place, high, UNIT), x - base, 0.0), SHAPE), axis=1)
    return higher, total, above


@triton.jit
def _write(x, dx_ptr, start, first, high, target, x_target, top, total, factor, N, smoothing, UNIT: tl.constexpr):
    BLOCK: tl.constexpr = x.shape[0]
    lanes = tl.arange(0, BLOCK)
    inside = _inside(start + lanes, high, UNIT)
    dx = _gradient(_exp(x.to(tl.float32) - top), total, factor, N, smoothing)
    at = target + first - start
    if (at >= 0) & (at < BLOCK):  # a store for each case: with one for both, every tile would compare its columns
        at_target = _gradient_at_target(_exp(x_target - top), total, factor, N, smoothing)
        tl.store(dx_ptr + start + lanes, tl.where(lanes == at, at_target, dx), mask=inside)
    else:
        tl.store(dx_ptr + start + lanes, dx, mask=inside)


@triton.jit
def _write_row(
    x_ptr, dx_ptr, first, high, stop, counts, target, x_target, top, total, factor, N, smoothing,
    BLOCK: tl.constexpr, UNIT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The tiles before `stop`, the last one first: of all tiles it is the likeliest to be in cache still."""
    lanes = tl.arange(0, BLOCK)
    if STAGES == 0:
        place = stop - BLOCK + lanes
        inside = _inside(place, high, UNIT) & (place >= 0) & counts
        x = tl.load(x_ptr + place, mask=inside, other=float("-inf"), eviction_policy="evict_first")
        for done in range(BLOCK, stop + 1, BLOCK):
            place -= BLOCK
            inside = _inside(place, high, UNIT) & (place >= 0) & counts
            ahead = tl.load(x_ptr + place, mask=inside, other=float("-inf"), eviction_policy="evict_first")
            _write(x, dx_ptr, stop - done, first, high, target, x_target, top, total, factor, N, smoothing, UNIT)
            x = ahead
    else:
        for done in tl.range(BLOCK, stop + 1, BLOCK, num_stages=STAGES):
            place = stop - done + lanes
            inside = _inside(place, high, UNIT) & counts
            x = tl.load(x_ptr + place, mask=inside, other=float("-inf"), eviction_policy="evict_first")
            _write(x, dx_ptr, stop - done, first, high, target, x_target, top, total, factor, N, smoothing, UNIT)
    if UNIT == 1:
        place, inside = _edges(first, high, N)
        x = tl.load(x_ptr + place, mask=inside & counts, other=float("-inf")).to(tl.float32)
        dx = _gradient(_exp(x - top), total, factor, N, smoothing)
        at_target = _gradient_at_target(_exp(x_target - top), total, factor, N, smoothing)
        tl.store(dx_ptr + place, tl.where(place == target + first, at_target, dx), mask=inside)


@triton.jit
def _settled(target, counts, known, x_target, top, total, factor):
    """With numbers that make the gradient zero in a row that does not count: its logits are not read, but -inf."""
    return (
        tl.where(counts, target, -1), tl.where(counts, x_target, 0.0), tl.where(counts, top, 0.0),
        tl.where(counts, total, 1.0), tl.where(counts, tl.where(known, factor, float("nan")), 0.0),
    )  # fmt: skip


# --8<-- [end:tiles]


# --8<-- [start:forward]
@triton.jit(do_not_specialize=["x_stride", "N"])
def _forward_wide_kernel(
    logits_ptr, target_ptr, notes_ptr, state_ptr, share_ptr, loss_ptr, dx_ptr,
    x_stride, target_stride, M, N, ignore_index, smoothing,
    MEAN: tl.constexpr, SMOOTH: tl.constexpr, UNIT: tl.constexpr, DENSE: tl.constexpr, GROUP: tl.constexpr,
    BLOCK: tl.constexpr, KEEP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Rows of any length, looked at twice; the last KEEP tiles stay in registers, the others come from cache.

    STAGES: 0 has the next tile on its way to registers while one is worked on, 1 has not, more go by shared memory.
    """
    N *= UNIT
    smoothing = tl.cast(smoothing, tl.float32)
    lanes = tl.arange(0, BLOCK)
    losses = tl.cast(0.0, tl.float32)
    factor = _factor(tl.load(notes_ptr).to(tl.float32, bitcast=True), notes_ptr, MEAN)
    for index in tl.range(tl.program_id(0), M, tl.num_programs(0), disable_licm=True):
        row = tl.cast(index, tl.int64)
        target = tl.load(target_ptr + row * target_stride)
        begin, first, high = _places(row, N, UNIT)
        x_ptr = logits_ptr + (begin if DENSE else row * x_stride * UNIT - first)
        stop = tl.maximum(tl.cdiv(high, BLOCK) - KEEP, 0) * BLOCK
        end = high if KEEP == 0 else stop
        if STAGES == 0:  # the target is on its way
            x = tl.load(
                x_ptr + lanes, mask=_inside(lanes, end, UNIT), other=float("-inf"), eviction_policy="evict_last"
            )
        counts, known = target != ignore_index, (target >= 0) & (target < N)
        x_target = tl.load(x_ptr + first + target, mask=counts & known, other=float("nan")).to(tl.float32)
        base = tl.where(tl.abs(x_target) < float("inf"), x_target, 0.0)
        tops = tl.full([BLOCK // GROUP], _lowest(), tl.float32)
        totals = tl.zeros([BLOCK // GROUP], tl.float32)
        aboves = tl.zeros([BLOCK // GROUP], tl.float32)
        kept = ()
        for tile in tl.static_range(KEEP):  # past L1, which is for the tiles that will be looked at again
            place = stop + tile * BLOCK + lanes
            inside = _inside(place, high, UNIT) & counts
            kept = kept + (tl.load(x_ptr + place, mask=inside, other=float("-inf"), cache_modifier=".cg"),)
        for tile in tl.static_range(KEEP):
            place = stop + tile * BLOCK + lanes
            tops, totals, aboves = _look(kept[tile], place, high, base, tops, totals, aboves, SMOOTH, UNIT, GROUP)
        if STAGES == 0:
            for start in range(0, tl.where(counts, stop, 0), BLOCK):
                place = start + lanes
                inside = _inside(place + BLOCK, end, UNIT)
                ahead = tl.load(x_ptr + place + BLOCK, mask=inside, other=float("-inf"), eviction_policy="evict_last")
                tops, totals, aboves = _look(x, place, high, base, tops, totals, aboves, SMOOTH, UNIT, GROUP)
                x = ahead
        else:
            for start in tl.range(0, tl.where(counts, stop, 0), BLOCK, num_stages=STAGES):
                place = start + lanes
                inside = _inside(place, high, UNIT)
                x = tl.load(x_ptr + place, mask=inside, other=float("-inf"), eviction_policy="evict_last")
                tops, totals, aboves = _look(x, place, high, base, tops, totals, aboves, SMOOTH, UNIT, GROUP)
        top, above = tl.max(tops), tl.sum(aboves)
        if UNIT == 1:
            place, inside = _edges(first, high, N)
            x_edge = tl.load(x_ptr + place, mask=inside & counts, other=float("-inf")).to(tl.float32)
            top = tl.maximum(top, tl.max(x_edge))
            above += tl.sum(tl.where(inside, x_edge - base, 0.0))
            total = tl.sum(totals * _exp(tops - top)) + tl.sum(_exp(x_edge - top))
        else:
            total = tl.sum(totals * _exp(tops - top))
        loss = tl.where(counts, _loss(x_target, base, top, total, above, N, smoothing, SMOOTH), 0.0)
        losses += loss
        if state_ptr is not None:
            tl.store(state_ptr + row, top)
            tl.store(state_ptr + M + row, total)
        if share_ptr is None:
            tl.store(loss_ptr + row, loss)
        if dx_ptr is not None:
            target, x_target, top, total, scale = _settled(target, counts, known, x_target, top, total, factor)
            _write_row(
                x_ptr, dx_ptr + begin, first, high, stop, counts, target, x_target, top, total, scale, N, smoothing,
                BLOCK, UNIT, STAGES,
            )  # fmt: skip
            for tile in tl.static_range(KEEP):
                start = stop + tile * BLOCK
                _write(
                    kept[tile], dx_ptr + begin, start, first, high, target, x_target, top, total, scale, N, smoothing,
                    UNIT,
                )  # fmt: skip
    if share_ptr is not None:
        _finish(losses, share_ptr, notes_ptr, loss_ptr, MEAN)


# --8<-- [end:forward]


# --8<-- [start:backward]
@triton.jit
def _begin_backward(dloss_ptr, notes_ptr, guess_ptr, M, MEAN: tl.constexpr, EACH: tl.constexpr):
    """One factor for all rows, and up to where they are to be written: nowhere, if that factor was guessed.

    What is seen is left as the next call's guess.
    """
    dloss = tl.load(dloss_ptr).to(tl.float32)
    end = M
    if guess_ptr is not None:
        if not EACH:
            end = tl.where(dloss.to(tl.int32, bitcast=True) == tl.load(notes_ptr), 0, M)
        if tl.program_id(0) == 0:
            tl.store(guess_ptr, dloss)
    return _factor(dloss, notes_ptr, MEAN), end


@triton.jit(do_not_specialize=["x_stride", "N"])
def _backward_kernel(
    dloss_ptr, logits_ptr, target_ptr, notes_ptr, state_ptr, guess_ptr, dx_ptr,
    dloss_stride, x_stride, target_stride, M, N, ignore_index, smoothing,
    MEAN: tl.constexpr, EACH: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Short rows: all, or with a guess those for which it was wrong."""
    N *= UNIT
    smoothing = tl.cast(smoothing, tl.float32)
    cols = tl.arange(0, BLOCK)
    factor, end = _begin_backward(dloss_ptr, notes_ptr, guess_ptr, M, MEAN, EACH)
    for start in range(tl.program_id(0) * ROWS, end, tl.num_programs(0) * ROWS):
        rows = tl.cast(start, tl.int64) + tl.arange(0, ROWS)
        factors = tl.full([ROWS], factor, tl.float32)
        wrong = rows < M
        if EACH:
            factors = tl.load(dloss_ptr + rows * dloss_stride, mask=rows < M, other=0.0).to(tl.float32)
            if guess_ptr is not None:
                wrong &= factors.to(tl.int32, bitcast=True) != tl.load(notes_ptr)
        if tl.max(wrong.to(tl.int32)) > 0:
            target, counts, known, x, x_target = _load_rows(
                logits_ptr, target_ptr, rows, cols, x_stride, target_stride, M, N, ignore_index, UNIT
            )
            top = tl.load(state_ptr + rows, mask=rows < M, other=0.0)
            total = tl.load(state_ptr + M + rows, mask=rows < M, other=1.0)
            e, e_target = _exp(x - top[:, None]), _exp(x_target - top)
            _write_rows(e, dx_ptr, rows, cols, target, counts, known, e_target, total, factors, M, N, smoothing)


@triton.jit(do_not_specialize=["x_stride", "N"])
def _backward_wide_kernel(
    dloss_ptr, logits_ptr, target_ptr, notes_ptr, state_ptr, guess_ptr, dx_ptr,
    dloss_stride, x_stride, target_stride, M, N, ignore_index, smoothing,
    MEAN: tl.constexpr, EACH: tl.constexpr, UNIT: tl.constexpr, DENSE: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The same of wide rows: one look, since the sums are known."""
    N *= UNIT
    smoothing = tl.cast(smoothing, tl.float32)
    factor, end = _begin_backward(dloss_ptr, notes_ptr, guess_ptr, M, MEAN, EACH)
    for index in tl.range(tl.program_id(0), end, tl.num_programs(0), disable_licm=True):
        row = tl.cast(index, tl.int64)
        wrong = True
        if EACH:
            factor = tl.load(dloss_ptr + row * dloss_stride).to(tl.float32)
            if guess_ptr is not None:
                wrong = factor.to(tl.int32, bitcast=True) != tl.load(notes_ptr)
        if wrong:
            target = tl.load(target_ptr + row * target_stride)
            counts, known = target != ignore_index, (target >= 0) & (target < N)
            begin, first, high = _places(row, N, UNIT)
            x_ptr = logits_ptr + (begin if DENSE else row * x_stride * UNIT - first)
            x_target = tl.load(x_ptr + first + target, mask=counts & known, other=float("nan")).to(tl.float32)
            target, x_target, top, total, scale = _settled(
                target, counts, known, x_target, tl.load(state_ptr + row), tl.load(state_ptr + M + row), factor
            )
            _write_row(
                x_ptr, dx_ptr + begin, first, high, tl.cdiv(high, BLOCK) * BLOCK, counts, target, x_target, top, total,
                scale, N, smoothing, BLOCK, UNIT, STAGES,
            )  # fmt: skip


# --8<-- [end:backward]


# --8<-- [start:launch]
# Chosen by row length from sweeps on an H100 and an H200; nothing is tuned at a user's first call. Threads, not
# warps, since an AMD warp has 64. An entry with ROWS is for the kernels of short rows. PROGRAMS are those of a
# multiprocessor, each with some rows; 0: one for each row.
@functools.cache
def _device(device: torch.device) -> tuple[int, int]:
    """Multiprocessors, and threads a warp."""
    if device.type == "cpu":  # the interpreter
        return 2, 32
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, properties.warp_size


def _options(device: torch.device, threads: int, registers: int = 0, **constants: int) -> dict[str, int]:
    """With at most so many registers a thread, where that is said and can be: by NVIDIA's backend."""
    warp_size = _device(device)[1]
    limit = {"maxnreg": registers} if registers and warp_size == 32 and not torch.version.hip else {}
    return {**constants, "num_warps": threads // warp_size, **limit}


@functools.cache
def _forward_launch(N: int, bits: int, device: torch.device) -> dict[str, int]:
    block = max(triton.next_power_of_2(N), 8)
    if N <= 1024:
        return _options(device, 64, ROWS=1024 // block, BLOCK=block, STAGES=1, PROGRAMS=16)
    if N <= 4096:
        threads, programs = (block // 16, 5) if bits == 16 else (block // 32, 8)
        return _options(device, threads, ROWS=1, BLOCK=block, STAGES=1, PROGRAMS=programs)
    if bits == 32 and 16384 < N <= 32768:
        return _options(device, 1024, ROWS=1, BLOCK=block, STAGES=1, PROGRAMS=1)
    if N <= 8192 or (bits == 32 and N <= 16384):
        return _options(device, 256, 40, BLOCK=256 * 128 // bits, KEEP=0, STAGES=0, PROGRAMS=6)
    if N <= 32768:
        return _options(device, 512, 32, BLOCK=4096, KEEP=0, STAGES=1, PROGRAMS=4)
    # fewer and fewer rows at a time, so that they are in cache still when they are looked at again
    threads, programs = (512, 2) if N <= 98304 else (1024, 1)
    return _options(device, threads, 64, BLOCK=threads * 256 // bits, KEEP=0, STAGES=0, PROGRAMS=programs)


@functools.cache
def _backward_launch(N: int, bits: int, device: torch.device) -> dict[str, int]:
    """PROGRAMS count where rows are expected to be left as they are; else each row has one."""
    if N <= 1024:
        block = max(triton.next_power_of_2(N), 8)
        return _options(device, 128, ROWS=1024 // block, BLOCK=block, PROGRAMS=16)
    if N <= 8192:
        return _options(device, 128, BLOCK=2048 * 8 // bits, STAGES=1, PROGRAMS=16)
    return _options(device, 512, 32, BLOCK=8192 * 8 // bits, STAGES=3, PROGRAMS=4)


# --8<-- [end:launch]


# --8<-- [start:op]
# Beyond it indices of 32 bits have room for the largest tile, and for a step over rows, which may be all of them.
_MOST_ROWS = _MOST_COLUMNS = 2**30


def _checked(M: int, N: int) -> None:
    if M > _MOST_ROWS or N > _MOST_COLUMNS:
        raise ValueError(f"logits: expected at most {_MOST_ROWS} rows and {_MOST_COLUMNS} columns, got {M} x {N}")


_REDUCTIONS = ("none", "mean", "sum")
_guesses: dict[torch.device, Tensor] = globals().get("_guesses", {})  # kept by a reload: captured graphs use them


def _guess(device: torch.device) -> Tensor:
    """The incoming gradient seen last on a device, fp32. Any value would do, were it garbage: it only saves time."""
    if device not in _guesses:
        _guesses[device] = torch.ones((), dtype=torch.float32, device=device)  # whatever the default dtype is
    return _guesses[device]


def _rows(t: Tensor) -> Tensor:
    """As M x N with neighbouring columns: a view where the strides allow one."""
    rows = t if t.dim() == 2 else t[None]
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _shape(x: Tensor, options: dict[str, int]) -> tuple[tuple[int, int, int], dict[str, int]]:
    """Row stride, M and N, in units of 8 where that divides, and the constants that tell."""
    (M, N), stride = x.shape, x.stride(0)
    unit = 8 if N and N % 8 == 0 and stride % 8 == 0 else 1
    constants = {"UNIT": unit} if "ROWS" in options else {"UNIT": unit, "DENSE": stride == N}
    return (stride // unit, M, N // unit), constants


def _forward_fake(
    logits: Tensor, target: Tensor, ignore_index: int, smoothing: float, reduction: str, dtype: torch.dtype,
    save: bool, ahead: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    M = logits.shape[0] if logits.dim() == 2 else 1
    loss = logits.new_empty(logits.shape[:-1] if reduction == "none" else (), dtype=dtype)
    notes = logits.new_empty(2 + _COUNTERS, dtype=torch.int32)
    state = logits.new_empty((2, M) if save else 0, dtype=torch.float32)
    dx = logits.new_empty(logits.shape if ahead else 0)
    return loss, notes, state, dx


def _forward(
    logits: Tensor, target: Tensor, ignore_index: int, smoothing: float, reduction: str, dtype: torch.dtype,
    save: bool, ahead: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The loss, and where a backward is to come what it needs; `ahead`: and the gradient, if the guess is right."""
    outputs = _forward_fake(logits, target, ignore_index, smoothing, reduction, dtype, save, ahead)
    loss, notes, state, dx = outputs
    if target.numel() == 0:
        loss.fill_(float("nan") if reduction == "mean" else 0.0)
        notes.zero_()
        return outputs
    x, target = _rows(logits), target.reshape(-1)
    _checked(*x.shape)
    launch = dict(_forward_launch(x.shape[1], 8 * x.element_size(), x.device))
    (stride, M, N), constants = _shape(x, launch)
    programs = min(-(-M // launch.get("ROWS", 1)), launch.pop("PROGRAMS") * _device(x.device)[0] or M)
    if "ROWS" not in launch:
        constants["GROUP"] = 16 // x.element_size()
    shares = None if reduction == "none" else x.new_empty(programs, dtype=torch.float32)
    kernel = _forward_kernel if "ROWS" in launch else _forward_wide_kernel
    with torch.cuda.device_of(x):  # triton launches on the current device
        _prepare_kernel[(min(-(-M // _COUNTED), _COUNTERS),)](
            target, _guess(x.device) if ahead else None, notes, target.stride(0), M, ignore_index
        )
        kernel[(programs,)](
            x, target, notes, state if save else None, shares, loss, dx if ahead else None,
            stride, target.stride(0), M, N, ignore_index, smoothing,
            MEAN=reduction == "mean", SMOOTH=smoothing != 0, **constants, **launch,
        )  # fmt: skip
    return outputs


def _write_gradient(dx, dloss, logits, target, notes, state, ignore_index, smoothing, reduction, guess) -> None:
    if dx.numel() == 0:
        return
    x, target, dloss = _rows(logits), target.reshape(-1), dloss.reshape(-1)
    launch = dict(_backward_launch(x.shape[1], 8 * x.element_size(), x.device))
    (stride, M, N), constants = _shape(x, launch)
    programs, most = -(-M // launch.get("ROWS", 1)), launch.pop("PROGRAMS") * _device(x.device)[0]
    kernel = _backward_kernel if "ROWS" in launch else _backward_wide_kernel
    each = reduction == "none"
    with torch.cuda.device_of(x):
        kernel[(programs if guess is None else min(programs, most),)](
            dloss, x, target, notes, state, guess, dx, dloss.stride(0) if each else 0, stride, target.stride(0), M, N,
            ignore_index, smoothing, MEAN=reduction == "mean", EACH=each, **constants, **launch,
        )  # fmt: skip


def _backward_fake(
    dloss: Tensor, logits: Tensor, target: Tensor, notes: Tensor, state: Tensor,
    ignore_index: int, smoothing: float, reduction: str,
) -> Tensor:  # fmt: skip
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


def _backward(dloss: Tensor, logits: Tensor, *rest: object) -> Tensor:
    """The gradient, in memory of its own."""
    dx = _backward_fake(dloss, logits, *rest)  # type: ignore[arg-type]
    _write_gradient(dx, dloss, logits, *rest, None)
    return dx


def _correct(dx: Tensor, dloss: Tensor, logits: Tensor, *rest: object) -> None:
    """Makes of the gradient that was written ahead the one for dloss, and dloss the next guess."""
    _write_gradient(dx, dloss, logits, *rest, _guess(logits.device))


# define and impl cost the host less per call than custom_op; fake tensors, torch.compile and opcheck work as well
_namespace = __name__.replace(".", "_")  # another copy of this file, in another package, has another
_library = torch.library.Library(_namespace, "FRAGMENT")
_OPTIONS = "int ignore_index, float smoothing, str reduction"
_SAVED = f"Tensor dloss, Tensor logits, Tensor target, Tensor notes, Tensor state, {_OPTIONS}"
_FORWARD = (
    f"(Tensor logits, Tensor target, {_OPTIONS}, ScalarType dtype, bool save, bool ahead)"
    " -> (Tensor, Tensor, Tensor, Tensor)"
)
for _name, _schema, _function, _meta in (
    ("cross_entropy_forward", _FORWARD, _forward, _forward_fake),
    ("cross_entropy_forward_eager", _FORWARD, _forward, _forward_fake),  # without a derivative: a Function has it
    ("cross_entropy_backward", f"({_SAVED}) -> Tensor", _backward, _backward_fake),
    ("cross_entropy_backward_recorded", f"({_SAVED}) -> Tensor", _backward, _backward_fake),  # is not differentiated
    ("cross_entropy_correct", f"(Tensor(a!) dx, {_SAVED}) -> ()", _correct, lambda *_: None),
):
    _library.define(_name + _schema)
    for _key in ("CUDA", "CPU"):  # AMD's GPUs are "CUDA" to torch; the CPU is for triton's interpreter
        _library.impl(_name, _function, _key)
    torch.library.register_fake(f"{_namespace}::{_name}", _meta, lib=_library)
_forward_op = getattr(torch.ops, _namespace).cross_entropy_forward.default
_eager_forward = getattr(torch.ops, _namespace).cross_entropy_forward_eager.default._op  # __call__ costs 0.3 us
_backward_op = getattr(torch.ops, _namespace).cross_entropy_backward.default
_recorded_backward = getattr(torch.ops, _namespace).cross_entropy_backward_recorded.default
_correct_op = getattr(torch.ops, _namespace).cross_entropy_correct.default
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
        raise RuntimeError("cross_entropy: expected a call outside torch.func (grad, jvp, vmap, ...) and "
                           "forward-mode AD, got one inside: this kernel has a plain backward only")  # fmt: skip


# modes that make a graph of what they see; others, as for counting or logging, change nothing
_MODES = torch._C._TorchDispatchModeKey
_RECORDERS, _mode = (_MODES.PROXY, _MODES.FUNCTIONAL, _MODES.FAKE), torch._C._get_dispatch_mode


def _recorded() -> bool:
    return _modes() > 0 and any(_mode(key) is not None for key in _RECORDERS)


# by is_grads_batched, by torch.func.vmap
_BATCHED = torch._C._functorch.is_legacy_batchedtensor, torch._C._functorch.is_batchedtensor


_ONCE = (
    "cross_entropy: expected a backward without create_graph=True, got one with: it would lose the second "
    "derivative, which this kernel does not have"
)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, logits: Tensor, target: Tensor, options: tuple[int, float, str], dtype: torch.dtype, ahead: bool,
        computed: tuple[Tensor, ...] = (),
    ) -> Tensor:  # fmt: skip
        loss, *saved = computed or _eager_forward(logits, target, *options, dtype, True, ahead)
        ctx.set_materialize_grads(False)
        ctx.options, ctx.ahead = options, ahead
        ctx.save_for_backward(logits, target, *saved)
        return loss

    @staticmethod
    def backward(ctx, dloss: Tensor | None) -> tuple[Tensor | None, ...]:
        if dloss is None:
            return (None,) * 6
        if forward_ad._current_level >= 0:
            _refuse_transforms(dloss)
        if torch.is_grad_enabled():  # not once_differentiable, which lets a dloss that needs no gradient pass
            raise RuntimeError(_ONCE)
        logits, target, notes, state, dx = ctx.saved_tensors
        recorded = _compiling() or _recorded()  # a graph would copy the gradient before it let an op write into it
        if recorded or not ctx.ahead or any(is_batched(dloss) for is_batched in _BATCHED):  # several gradients
            backward = _recorded_backward if recorded else _backward_op
            return backward(dloss, logits, target, notes, state, *ctx.options), None, None, None, None, None
        ctx.ahead = False  # the memory is the caller's from now on: a second backward takes its own
        dx = dx.data  # with a version of its own, so that what the caller does to it does not make the saved one stale
        _correct_op(dx, dloss, logits, target, notes, state, *ctx.options)
        return dx, None, None, None, None, None


# Function.apply, but for what that does for torch.func, which is refused: 1.5 us
_apply = super(torch.autograd.Function, _CrossEntropy).apply


def _differentiable(
    logits: Tensor, target: Tensor, ignore_index: int, smoothing: float, reduction: str, dtype: torch.dtype,
    save: bool, ahead: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The operator for autograd: its gradient is in every graph that holds it, whoever recorded that."""
    if forward_ad._current_level >= 0 or isinstance(_transforms(), _Transform):
        _refuse_transforms(logits)
    options, needed = (ignore_index, smoothing, reduction), torch.is_grad_enabled() and logits.requires_grad
    with torch._C._AutoDispatchBelowAutograd():
        loss, *saved = computed = _forward_op(logits, target, *options, dtype, save or needed, ahead)
    return _apply(logits, target, options, dtype, ahead, computed) if needed else loss, *saved


class _Once(torch.autograd.Function):
    """The backward's operator for autograd: in a graph, it has a derivative no more than in eager code."""

    @staticmethod
    def forward(ctx, *arguments: object) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            return _recorded_backward(*arguments)

    @staticmethod
    def backward(ctx, *_: Tensor) -> None:
        raise RuntimeError(_ONCE)


_library.impl("cross_entropy_forward", _differentiable, "Autograd")
_library.impl("cross_entropy_backward_recorded", _Once.apply, "Autograd")
# torch's default, for an operator that has no derivative, costs the host 0.3 us
_library.impl("cross_entropy_forward_eager", torch.library.fallthrough_kernel, "Autograd")


# --8<-- [end:autograd]


_DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # what is most used is found first
_INTEGER, _NUMBER = (int, numbers.Integral), (float, numbers.Real)  # NumPy's, too; the first is found sooner
_INTERPRETED = not isinstance(_forward_kernel, triton.runtime.JITFunction)


def _wrong_type(name: str, t: object) -> TypeError:
    got = t.dtype if isinstance(t, Tensor) else type(t)
    return TypeError(f"{name}: expected an fp32, fp16 or bf16 tensor, got {got}")


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Cross-entropy of rows of logits and the class that each should have.

    The function, and the dtypes, of `torch.nn.functional.cross_entropy` with class indices: computed in fp32 and
    rounded once, to the dtype of the logits (the loss under autocast to fp32). Where a gradient is needed, and
    outside of torch.compile, the forward computes it too. What F.cross_entropy has and this has not: class weights,
    probabilities as targets, dimensions behind the classes ([M, N, ...]), fp64, a double backward, torch.func and
    forward-mode AD; and after the target its arguments follow in another order.

    Args:
        logits: [M, N] or [N], fp32, fp16 or bf16, with any strides. Rows without unit stride are copied first.
        target: [M] or [], int64, with classes from 0 to N - 1 or ignore_index. On a GPU nobody looks at them before
            the kernel does: the loss and the gradient of a row with another target are NaN.
        ignore_index: rows with this target count nowhere: no loss, a gradient of zero, whatever their logits are.
        label_smoothing: from 0 to 1, how much of the target's probability is spread over all classes.
        reduction: "mean" (over the rows that count: NaN if none does), "sum" or "none".

    Returns:
        The loss: of the shape of target for "none", else of shape []. A gradient flows to the logits. Both are bitwise
        the same in every run.

    Raises:
        TypeError: logits is not a tensor of one of these dtypes, or target not one of int64; one of them is nested;
            ignore_index is no integer, or label_smoothing no number.
        ValueError: a shape, label_smoothing or reduction other than these; more than 2^30 rows or columns; target on
            another device than logits; or logits on a CPU while Triton's interpreter (TRITON_INTERPRET=1) is off.
        RuntimeError: in a backward with create_graph=True, since there is no double backward; inside torch.func (grad,
            jvp, vmap, ...) and in forward-mode AD, which are not supported either.

    Source: Milakov & Gimelshein, "Online normalizer calculation for softmax", 2018 (https://arxiv.org/abs/1805.02867).
    """
    if not isinstance(logits, Tensor) or logits.dtype not in _DTYPES:
        raise _wrong_type("logits", logits)
    if logits.is_cpu and not _INTERPRETED:
        raise ValueError("logits: expected a GPU tensor, got one on the CPU (which needs TRITON_INTERPRET=1)")
    if forward_ad._current_level >= 0 or (_transforms() is not None and isinstance(_transforms(), _Transform)):
        _refuse_transforms(logits)
    if not isinstance(target, Tensor) or target.dtype != torch.int64:
        got = target.dtype if isinstance(target, Tensor) else type(target)
        raise TypeError(f"target: expected an int64 tensor of classes (not of probabilities), got {got}")
    if logits.is_nested or target.is_nested:  # F.cross_entropy takes none
        raise TypeError(f"{'logits' if logits.is_nested else 'target'}: expected a plain tensor, got a nested one; the "
                        "rows of a jagged one are in its values()")  # fmt: skip
    shape = logits.shape
    if len(shape) not in (1, 2):
        raise ValueError(f"logits: expected one or two dimensions, got {len(shape)}")
    rows = (shape[0],) if len(shape) == 2 else ()
    if target.shape != rows and not (len(shape) == 1 and target.shape == (1,)):
        raise ValueError(f"target: expected shape {list(rows)}, got {list(target.shape)}")
    if target.device != logits.device:
        raise ValueError(f"target: expected on {logits.device}, where logits is, got {target.device}")
    if not isinstance(ignore_index, _INTEGER):
        raise TypeError("ignore_index: expected an integer (class weights, F.cross_entropy's third argument, are not "
                        f"supported), got {type(ignore_index)}")  # fmt: skip
    if not -(2**63) <= ignore_index < 2**63:
        raise ValueError(f"ignore_index: expected 64 bits, got {ignore_index}")
    if not isinstance(label_smoothing, _NUMBER):
        raise TypeError(f"label_smoothing: expected a number, got {type(label_smoothing)}")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing: expected from 0 to 1, got {label_smoothing}")
    if not isinstance(reduction, str) or reduction not in _REDUCTIONS:
        raise ValueError(f"reduction: expected one of {', '.join(map(repr, _REDUCTIONS))}, got {reduction!r}")
    dtype = torch.float32 if _autocast(logits.device.type) else logits.dtype
    options = (ignore_index, label_smoothing, reduction)
    needed = _grad_enabled() and logits.requires_grad
    if _compiling() or _recorded() or _tracing() or _included(_PRE_DISPATCH):
        return _forward_op(logits, target, *options, dtype, False, False)[0]
    if needed:
        return _apply(logits, target, options, dtype, True)
    return _eager_forward(logits, target, *options, dtype, False, False)[0]

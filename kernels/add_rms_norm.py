# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The Ridgepoint authors
"""Residual add and RMSNorm in one kernel, forward and backward: one file to copy. It needs torch 2.11 or newer, and its
triton.

    h = x + residual          rounded to its dtype, as the add alone would do it
    y = h * rstd * weight     with rstd = 1 / sqrt(mean(h^2) + eps) over the last dimension

Both are returned: y goes into the next layer, h is the residual stream after it. Source of the norm: Zhang & Sennrich,
"Root Mean Square Layer Normalization", 2019 (https://arxiv.org/abs/1910.07467).

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


# --8<-- [start:forward]
@triton.jit
def _load(ptr, cols, N, POLICY: tl.constexpr):
    """Some columns of a row as fp32; of a weight that is not given, ones, which cost nothing."""
    if ptr is None:
        return tl.full(cols.shape, 1.0, tl.float32)
    else:
        return tl.load(ptr + cols, mask=cols < N, other=0.0, eviction_policy=POLICY).to(tl.float32)


@triton.jit(do_not_specialize=["x_stride", "residual_stride", "N"])
def _forward_kernel(
    x_ptr, residual_ptr, weight_ptr, y_ptr, h_ptr, rstd_ptr, x_stride, residual_stride, M, N, eps,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS rows at a time, held in registers. Reads 2MN, writes 2MN."""
    x_stride, residual_stride = tl.cast(x_stride, tl.int64) * UNIT, tl.cast(residual_stride, tl.int64) * UNIT
    N = N * UNIT
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    inside = (rows < M)[:, None] & (cols < N)[None, :]
    x = tl.load(x_ptr + rows[:, None] * x_stride + cols[None, :], mask=inside, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + rows[:, None] * residual_stride + cols[None, :], mask=inside, other=0.0)
    rounded = (x + residual.to(tl.float32)).to(h_ptr.dtype.element_ty)
    tl.store(h_ptr + rows[:, None] * N + cols[None, :], rounded, mask=inside)
    h = rounded.to(tl.float32)  # what the next layer's add, and the backward, will read
    rstd = tl.rsqrt(tl.sum(h * h, axis=1) / N + tl.cast(eps, tl.float32))
    weight = _load(weight_ptr, cols, N, "")
    tl.store(y_ptr + rows[:, None] * N + cols[None, :], h * rstd[:, None] * weight[None, :], mask=inside)
    if rstd_ptr is not None:
        tl.store(rstd_ptr + rows, rstd, mask=rows < M)


# --8<-- [end:forward]


# --8<-- [start:forward-wide]
@triton.jit
def _add(x_ptr, residual_ptr, h_ptr, cols, N):
    """h, rounded and stored."""
    h = (_load(x_ptr, cols, N, "evict_first") + _load(residual_ptr, cols, N, "evict_first")).to(h_ptr.dtype.element_ty)
    tl.store(h_ptr + cols, h, mask=cols < N, eviction_policy="evict_last")
    return h.to(tl.float32)


@triton.jit(do_not_specialize=["x_stride", "residual_stride", "N"])
def _forward_wide_kernel(
    x_ptr, residual_ptr, weight_ptr, y_ptr, h_ptr, rstd_ptr, x_stride, residual_stride, N, eps,
    UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row of any length, looked at twice. The second look is for h, which the program has just stored: in cache."""
    x_stride, residual_stride = tl.cast(x_stride, tl.int64) * UNIT, tl.cast(residual_stride, tl.int64) * UNIT
    N = N * UNIT
    row = tl.program_id(0).to(tl.int64)
    x_ptr, residual_ptr = x_ptr + row * x_stride, residual_ptr + row * residual_stride
    y_ptr, h_ptr = y_ptr + row * N, h_ptr + row * N
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        h = _add(x_ptr, residual_ptr, h_ptr, start + tl.arange(0, BLOCK), N)
        squares += h * h
    rstd = tl.rsqrt(tl.sum(squares) / N + tl.cast(eps, tl.float32))
    if rstd_ptr is not None:
        tl.store(rstd_ptr + row, rstd)
    tl.debug_barrier()  # what one thread stored, another may load
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        y = _load(h_ptr, cols, N, "evict_first") * rstd * _load(weight_ptr, cols, N, "")
        tl.store(y_ptr + cols, y, mask=cols < N)


# --8<-- [end:forward-wide]


# The backward. h goes two ways, into the norm and on as the residual stream, so its gradient comes from two sides. With
# h_hat = h * rstd and g = dy * weight:
#     dh + rstd * (g - h_hat * mean(g * h_hat))    of h, and so of x and of residual; the mean over the row
#     dweight = sum(dy * h_hat)                    the sum over all rows
# A program takes every P-th row (P programs) and keeps its share of dweight in registers. A second kernel adds the
# shares in a fixed order: no atomics, so dweight is bitwise the same in every run. No shares: dx alone is asked for.


# --8<-- [start:backward]
@triton.jit(do_not_specialize=["dy_stride", "dh_stride", "h_stride", "N"])
def _backward_kernel(
    dy_ptr, dh_ptr, h_ptr, weight_ptr, rstd_ptr, mean_ptr, dx_ptr, dresidual_ptr, share_ptr,
    dy_stride, dh_stride, h_stride, M, N,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """ROWS rows at a time while the next ones are on their way. Reads 3MN, writes MN.

    Of a row the program has BLOCK columns: if that is not the WHOLE row, the mean is read.
    """
    dy_stride, dh_stride = tl.cast(dy_stride, tl.int64) * UNIT, tl.cast(dh_stride, tl.int64) * UNIT
    h_stride, N = tl.cast(h_stride, tl.int64) * UNIT, N * UNIT
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    weight = _load(weight_ptr, cols, N, "")
    dweight = tl.zeros([ROWS, BLOCK], tl.float32)
    first = tl.program_id(0).to(tl.int64) * ROWS
    for start in tl.range(first, M, tl.num_programs(0) * ROWS, num_stages=STAGES):
        rows = tl.cast(start, tl.int64) + tl.arange(0, ROWS)  # the interpreter's start is a Python int
        inside = (rows < M)[:, None] & (cols < N)[None, :]
        h = tl.load(h_ptr + rows[:, None] * h_stride + cols[None, :], mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + rows[:, None] * dy_stride + cols[None, :], mask=inside, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + rows, mask=rows < M, other=0.0)[:, None]
        h_hat = h * rstd
        g = dy * weight[None, :]
        if WHOLE:
            mean = tl.sum(g * h_hat, axis=1) / N
        else:
            mean = tl.load(mean_ptr + rows, mask=rows < M, other=0.0)
        dx = (g - h_hat * mean[:, None]) * rstd
        if dh_ptr is not None:
            dx += tl.load(dh_ptr + rows[:, None] * dh_stride + cols[None, :], mask=inside, other=0.0).to(tl.float32)
        tl.store(dx_ptr + rows[:, None] * N + cols[None, :], dx, mask=inside)
        if dresidual_ptr is not None:
            tl.store(dresidual_ptr + rows[:, None] * N + cols[None, :], dx, mask=inside)
        if share_ptr is not None:
            dweight += dy * h_hat
    if share_ptr is not None:
        tl.store(share_ptr + tl.program_id(0).to(tl.int64) * N + cols, tl.sum(dweight, axis=0), mask=cols < N)


# --8<-- [end:backward]


# --8<-- [start:backward-wide]
@triton.jit
def _unpacked(kept, zero):
    """As fp32, but made anew: if it knew that zero is one, the compiler would keep the fp32 of the first look."""
    if kept.dtype.primitive_bitwidth == 16:
        kept = (kept.to(tl.int16, bitcast=True) ^ zero).to(kept.dtype, bitcast=True)
    return kept.to(tl.float32)


@triton.jit(do_not_specialize=["dy_stride", "dh_stride", "h_stride", "N"])
def _backward_wide_kernel(
    dy_ptr, dh_ptr, h_ptr, weight_ptr, rstd_ptr, dx_ptr, dresidual_ptr, share_ptr,
    dy_stride, dh_stride, h_stride, M, N,
    UNIT: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """One row at a time, in tiles, beside the share of dweight in registers.

    They are KEPT in registers, too, or looked at twice.
    """
    dy_stride, dh_stride = tl.cast(dy_stride, tl.int64) * UNIT, tl.cast(dh_stride, tl.int64) * UNIT
    h_stride, N = tl.cast(h_stride, tl.int64) * UNIT, N * UNIT
    # one policy in both looks makes them one load, kept in registers; with more tiles there is no room
    WEIGHT: tl.constexpr = "" if TILES <= 2 else "evict_last"
    dweight = (tl.zeros([BLOCK], tl.float32),) * TILES
    # disable_licm: the masks and addresses of all tiles, hoisted out of the loop, would spill
    for index in tl.range(tl.program_id(0).to(tl.int64), M, tl.num_programs(0), disable_licm=True):
        row = tl.cast(index, tl.int64)
        dy_row, h_row = dy_ptr + row * dy_stride, h_ptr + row * h_stride
        rstd = tl.load(rstd_ptr + row)
        products = tl.zeros([BLOCK // 8], tl.float32)
        added, kept = (), ()
        for tile in tl.static_range(TILES):
            cols = tile * BLOCK + tl.arange(0, BLOCK)
            if KEPT:
                dy = tl.load(dy_row + cols, mask=cols < N, other=0.0, cache_modifier=".cg")
                h = tl.load(h_row + cols, mask=cols < N, other=0.0, cache_modifier=".cg")
                kept = kept + (dy, h)
                dy_h_hat = dy.to(tl.float32) * (h.to(tl.float32) * rstd)
            else:
                dy_h_hat = _load(dy_row, cols, N, "evict_last") * (_load(h_row, cols, N, "evict_last") * rstd)
            if share_ptr is not None:
                added = added + (dweight[tile] + dy_h_hat,)
            product = dy_h_hat * _load(weight_ptr, cols, N, WEIGHT)
            products += tl.sum(tl.reshape(product, [BLOCK // 8, 8]), axis=1)  # the eight that one thread has
        if share_ptr is not None:
            dweight = added
        mean = tl.sum(products) / N
        zero = (rstd < 0).to(tl.int16)
        for tile in tl.static_range(TILES):
            cols = tile * BLOCK + tl.arange(0, BLOCK)
            if KEPT:
                h_hat = _unpacked(kept[2 * tile + 1], zero) * rstd
                g = _unpacked(kept[2 * tile], zero) * _load(weight_ptr, cols, N, "")
            else:
                h_hat = _load(h_row, cols, N, "evict_first") * rstd
                g = _load(dy_row, cols, N, "evict_first") * _load(weight_ptr, cols, N, "")
            dx = (g - h_hat * mean) * rstd
            if dh_ptr is not None:
                dx += _load(dh_ptr + row * dh_stride, cols, N, "evict_first")
            tl.store(dx_ptr + row * N + cols, dx, mask=cols < N)
            if dresidual_ptr is not None:
                tl.store(dresidual_ptr + row * N + cols, dx, mask=cols < N)
    if share_ptr is not None:
        for tile in tl.static_range(TILES):
            cols = tile * BLOCK + tl.arange(0, BLOCK)
            tl.store(share_ptr + tl.program_id(0).to(tl.int64) * N + cols, dweight[tile], mask=cols < N)


# --8<-- [end:backward-wide]


# --8<-- [start:sums]
@triton.jit(do_not_specialize=["dy_stride", "dh_stride", "h_stride", "N"])
def _row_kernel(
    dy_ptr, dh_ptr, h_ptr, weight_ptr, rstd_ptr, mean_ptr, dx_ptr, dresidual_ptr,
    dy_stride, dh_stride, h_stride, N,
    UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """mean(g * h_hat) of one row of any length. Reads 2MN. Where dx alone is asked for, a second look writes it."""
    dy_stride, dh_stride = tl.cast(dy_stride, tl.int64) * UNIT, tl.cast(dh_stride, tl.int64) * UNIT
    h_stride, N = tl.cast(h_stride, tl.int64) * UNIT, N * UNIT
    row = tl.program_id(0).to(tl.int64)
    dy_ptr, h_ptr = dy_ptr + row * dy_stride, h_ptr + row * h_stride
    FIRST: tl.constexpr = "" if dx_ptr is None else "evict_last"
    products = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        g = _load(dy_ptr, cols, N, FIRST) * _load(weight_ptr, cols, N, "")
        products += g * _load(h_ptr, cols, N, FIRST)
    rstd = tl.load(rstd_ptr + row)
    mean = tl.sum(products) * rstd / N
    if dx_ptr is None:
        tl.store(mean_ptr + row, mean)
    else:
        for start in range(0, N, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            h_hat = _load(h_ptr, cols, N, "evict_first") * rstd
            g = _load(dy_ptr, cols, N, "evict_first") * _load(weight_ptr, cols, N, "")
            dx = (g - h_hat * mean) * rstd
            if dh_ptr is not None:
                dx += _load(dh_ptr + row * dh_stride, cols, N, "evict_first")
            tl.store(dx_ptr + row * N + cols, dx, mask=cols < N)
            if dresidual_ptr is not None:
                tl.store(dresidual_ptr + row * N + cols, dx, mask=cols < N)


@triton.jit
def _sum_shares_kernel(share_ptr, dweight_ptr, P, N, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """dweight: the sum of P programs' shares. Reads PN, and P is small."""
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(0, P, ROWS):
        rows = (start + tl.arange(0, ROWS))[:, None]
        inside = (rows < P) & (cols < N)[None, :]
        total += tl.load(share_ptr + rows.to(tl.int64) * N + cols[None, :], mask=inside, other=0.0)
    tl.store(dweight_ptr + cols, tl.sum(total, axis=0), mask=cols < N)


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
    return {**constants, "num_warps": threads // _device(device)[1]}


@functools.cache
def _forward_launch(N: int, bits: int, device: torch.device) -> dict[str, int]:
    """With ROWS: that many whole rows in registers. Without: one row, looked at twice."""
    if N * bits > 32768 * 16:
        return _options(device, 1024, BLOCK=8192)
    block = triton.next_power_of_2(N)
    rows = max(1, 2048 // block)
    return _options(device, min(rows * block // 16, 1024), ROWS=rows, BLOCK=block)  # 16 elements a thread, or 32


@functools.cache
def _backward_launch(N: int, bits: int, device: torch.device) -> dict[str, int]:
    """PROGRAMS a multiprocessor. With TILES: rows in tiles. Without: one look, at WHOLE rows or at blocks of them."""
    if 8192 < N <= 10240 and bits == 16:  # two programs have room for all of a row: one loads while the other stores
        return _options(device, 256, PROGRAMS=2, TILES=5, BLOCK=2048, KEPT=True)
    if 8192 < N <= 32768:  # room for the share of dweight
        return _options(device, 1024, PROGRAMS=1, TILES=-(-N // 8192), BLOCK=8192, KEPT=False)
    # few programs mean few shares to add; as long as what they have in flight, in shared memory, keeps the memory busy
    tile, threads, programs = (2048, 128, 4) if N <= 2048 else (4096, 128, 2) if N <= 3072 else (8192, 256, 1)
    block = min(triton.next_power_of_2(N), tile)
    # 96 KiB of it at most for bf16: wider dtypes and AMD's smaller memory get a stage less
    stages = 3 if bits == 16 and _device(device)[1] == 32 else 2
    return _options(device, threads, PROGRAMS=programs, ROWS=tile // block, BLOCK=block, STAGES=stages, WHOLE=N <= 8192)


def _alone(N: int, bits: int) -> dict[str, int]:
    """What is other in the backward's launch where dx alone is asked for, and room for shares is free.

    PROGRAMS 0: one for each row, or ROWS. Tiles and threads stay, so that sums keep their order, and dx its bits.
    """
    if N <= 8192:
        return {"PROGRAMS": 0, "STAGES": 1} | ({"ROWS": 1} if N > 2048 else {})
    if N > 32768 or bits == 32:
        return {}
    return {"KEPT": True} | ({"PROGRAMS": 0} if N <= 10240 else {})


@functools.cache
def _row_launch(device: torch.device) -> dict[str, int]:
    return _options(device, 1024, BLOCK=8192)


@functools.cache
def _sum_launch(N: int, device: torch.device) -> dict[str, int]:
    block = min(256, max(8, triton.next_power_of_2(N // (4 * _device(device)[0]))))  # some programs for everyone
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


def _forward_fake(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, dtype: torch.dtype, save: bool
) -> tuple[Tensor, Tensor, Tensor]:
    y = torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)
    h = torch.empty_like(x, dtype=torch.promote_types(x.dtype, residual.dtype), memory_format=torch.contiguous_format)
    return y, h, x.new_empty(x.shape[:-1] if save else 0, dtype=torch.float32)


def _forward(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, dtype: torch.dtype, save: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """y, h, and rstd where a backward is to come."""
    y, h, rstd = _forward_fake(x, residual, weight, eps, dtype, save)
    if x.numel() == 0:
        return y, h, rstd
    N = x.shape[-1]
    M = x.numel() // N
    _checked(M, N)
    (x, x_stride), (residual, residual_stride) = _rows(x), _rows(residual)
    weight = weight if weight is None else weight.contiguous()
    unit = 8 if N % 8 == x_stride % 8 == residual_stride % 8 == 0 else 1
    tensors = x, residual, weight, y, h, rstd if save else None
    strides, n = (x_stride // unit, residual_stride // unit), N // unit
    options = _forward_launch(N, 8 * x.element_size(), x.device)
    with torch.cuda.device_of(x):  # triton launches on the current device
        if "ROWS" in options:
            _forward_kernel[(-(-M // options["ROWS"]),)](*tensors, *strides, M, n, eps, UNIT=unit, **options)
        else:
            _forward_wide_kernel[(M,)](*tensors, *strides, n, eps, UNIT=unit, **options)
    return y, h, rstd


def _backward_fake(
    dy: Tensor, dh: Tensor | None, h: Tensor, weight: Tensor | None, rstd: Tensor,
    x: torch.dtype, residual: torch.dtype, parameters: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dx = torch.empty_like(h, dtype=x, memory_format=torch.contiguous_format)
    dresidual = h.new_empty(0 if residual == x else h.shape, dtype=residual)
    dweight = torch.empty_like(weight, memory_format=torch.contiguous_format) if parameters else h.new_empty(0)
    return dx, dresidual, dweight


def _backward(
    dy: Tensor, dh: Tensor | None, h: Tensor, weight: Tensor | None, rstd: Tensor,
    x: torch.dtype, residual: torch.dtype, parameters: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dx; dresidual, empty where dx is it, too; dweight, empty where no gradient of parameters is asked for.

    No dh: nothing came from the residual stream.
    """
    dx, dresidual, dweight = _backward_fake(dy, dh, h, weight, rstd, x, residual, parameters)
    if h.numel() == 0:
        return dx, dresidual, dweight.zero_()
    N = h.shape[-1]
    M = h.numel() // N
    (dy, dy_stride), (h, h_stride), weight = _rows(dy), _rows(h), weight if weight is None else weight.contiguous()
    dh, dh_stride = (None, N) if dh is None else _rows(dh)
    unit = 8 if N % 8 == dy_stride % 8 == dh_stride % 8 == h_stride % 8 == 0 else 1
    strides, n = (dy_stride // unit, dh_stride // unit, h_stride // unit), N // unit
    bits = 8 * h.element_size()
    options = {"UNIT": unit, **_backward_launch(N, bits, h.device), **({} if parameters else _alone(N, bits))}
    programs = min(_device(h.device)[0] * options.pop("PROGRAMS") or M, -(-M // options.get("ROWS", 1)))
    shares = h.new_empty((programs, N), dtype=torch.float32) if parameters else None
    inputs, outputs = (dy, dh, h, weight, rstd), (dx, None if residual == x else dresidual)
    with torch.cuda.device_of(h):
        if "TILES" in options:
            _backward_wide_kernel[(programs,)](*inputs, *outputs, shares, *strides, M, n, **options)
        else:
            mean = torch.empty_like(rstd) if parameters and not options["WHOLE"] else None
            if not options["WHOLE"]:
                row_outputs = (mean, None, None) if parameters else (None, *outputs)
                _row_kernel[(M,)](*inputs, *row_outputs, *strides, n, UNIT=unit, **_row_launch(h.device))
            if options["WHOLE"] or parameters:
                grid = programs, -(-N // options["BLOCK"])
                _backward_kernel[grid](*inputs, mean, *outputs, shares, *strides, M, n, **options)
        if parameters:
            options = _sum_launch(N, h.device)
            _sum_shares_kernel[(-(-N // options["BLOCK"]),)](shares, dweight, programs, N, **options)
    return dx, dresidual, dweight


# define and impl cost the host less per call than custom_op; fake tensors, torch.compile and opcheck work as well
_namespace = __name__.replace(".", "_")  # another copy of this file, in another package, has another
_library = torch.library.Library(_namespace, "FRAGMENT")
_FORWARD = (
    "(Tensor x, Tensor residual, Tensor? weight, float eps, ScalarType dtype, bool save) -> (Tensor, Tensor, Tensor)"
)
_BACKWARD = (
    "(Tensor dy, Tensor? dh, Tensor h, Tensor? weight, Tensor rstd, ScalarType x, ScalarType residual, bool parameters)"
    " -> (Tensor, Tensor, Tensor)"
)
for _name, _schema, _function, _meta in (
    ("add_rms_norm_forward", _FORWARD, _forward, _forward_fake),
    ("add_rms_norm_forward_eager", _FORWARD, _forward, _forward_fake),  # without a derivative: a Function has it
    ("add_rms_norm_backward", _BACKWARD, _backward, _backward_fake),
    ("add_rms_norm_backward_recorded", _BACKWARD, _backward, _backward_fake),  # refuses to be differentiated
):
    _library.define(_name + _schema)
    for _key in ("CUDA", "CPU"):  # AMD's GPUs are "CUDA" to torch; the CPU is for triton's interpreter
        _library.impl(_name, _function, _key)
    torch.library.register_fake(f"{_namespace}::{_name}", _meta, lib=_library)
_forward_op = getattr(torch.ops, _namespace).add_rms_norm_forward.default
_eager_forward = getattr(torch.ops, _namespace).add_rms_norm_forward_eager.default._op  # __call__ costs 0.3 us
_backward_op = getattr(torch.ops, _namespace).add_rms_norm_backward.default
_recorded_backward = getattr(torch.ops, _namespace).add_rms_norm_backward_recorded.default
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
        raise RuntimeError("add_rms_norm: expected a call outside torch.func (grad, jvp, vmap, ...) and "
                           "forward-mode AD, got one inside: this kernel has a plain backward only")  # fmt: skip


_ONCE = (
    "add_rms_norm: expected a backward without create_graph=True, got one with: it would lose the second "
    "derivative, which this kernel does not have"
)


class _AddRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, dtype: torch.dtype,
        computed: tuple[Tensor, ...] = (),
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        y, h, rstd = computed or _eager_forward(x, residual, weight, eps, dtype, True)
        ctx.set_materialize_grads(False)  # an output that the loss does not use has None: no zeros to write and read
        ctx.save_for_backward(h, weight, rstd)
        ctx.dtypes = x.dtype, residual.dtype
        return y, h

    @staticmethod
    def backward(ctx, dy: Tensor | None, dh: Tensor | None) -> tuple[Tensor | None, ...]:
        if forward_ad._current_level >= 0:
            _refuse_transforms(dy, dh)
        if torch.is_grad_enabled():  # not once_differentiable, which lets a dy that needs no gradient pass
            raise RuntimeError(_ONCE)
        x, residual = ctx.dtypes
        if dy is None:  # what is left is an add
            dx, dresidual = (None, None) if dh is None else (dh.to(x), dh.to(residual))
            return dx, dresidual, None, None, None, None
        parameters = ctx.needs_input_grad[2]
        backward = _recorded_backward if _compiling() or _modes() else _backward_op
        dx, dresidual, dweight = backward(dy, dh, *ctx.saved_tensors, x, residual, parameters)
        # one tensor twice, as an add's backward does it: autograd sees that it is shared, and copies where it must
        return dx, dx if residual == x else dresidual, dweight if parameters else None, None, None, None


# Function.apply, but for what that does for torch.func, which is refused: 1.5 us
_apply = super(torch.autograd.Function, _AddRMSNorm).apply


def _differentiable(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, dtype: torch.dtype, save: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The operator for autograd: its gradient is in every graph that holds it, whoever recorded that."""
    if forward_ad._current_level >= 0 or isinstance(_transforms(), _Transform):
        _refuse_transforms(x, residual, weight)
    needed = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, residual, weight))
    with torch._C._AutoDispatchBelowAutograd():
        y, h, rstd = _forward_op(x, residual, weight, eps, dtype, save or needed)
    return *(_apply(x, residual, weight, eps, dtype, (y, h, rstd)) if needed else (y, h)), rstd


class _Once(torch.autograd.Function):
    """The backward's operator for autograd: in a graph, it has a derivative no more than in eager code."""

    @staticmethod
    def forward(ctx, *arguments: object) -> tuple[Tensor, ...]:
        with torch._C._AutoDispatchBelowAutograd():
            return _recorded_backward(*arguments)

    @staticmethod
    def backward(ctx, *_: Tensor) -> None:
        raise RuntimeError(_ONCE)


_library.impl("add_rms_norm_forward", _differentiable, "Autograd")
_library.impl("add_rms_norm_backward_recorded", _Once.apply, "Autograd")
# torch's default, for an operator that has no derivative, costs the host 0.3 us
_library.impl("add_rms_norm_forward_eager", torch.library.fallthrough_kernel, "Autograd")


# --8<-- [end:autograd]


_DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # what is most used is found first
_NUMBER = (float, numbers.Real)  # NumPy's, too; the first is found sooner
_EPS = torch.finfo(torch.float32).eps  # what F.rms_norm takes for None, whatever the dtype: it computes in fp32
_INTERPRETED = not isinstance(_forward_kernel, triton.runtime.JITFunction)
# newer torch autocasts rms_norm to fp32 on a GPU; we do as the installed one does
_AUTOCAST = torch._C._dispatch_has_kernel_for_dispatch_key("aten::rms_norm", "AutocastCUDA")


def _nested(function: Callable[..., tuple[Tensor, ...]], x: Tensor, residual: Tensor) -> tuple[Tensor, ...]:
    """Of jagged tensors, the function of their values; of strided ones, of their tensors two by two."""
    if (residual.is_nested, residual.layout) != (x.is_nested, x.layout):
        raise TypeError(f"residual: expected of layout {x.layout}, and nested only if x is, got {residual.layout}")
    if x.layout != torch.jagged:
        if residual.size(0) != x.size(0):
            raise ValueError(f"residual: expected {x.size(0)} tensors, as x has, got {residual.size(0)}")
        each = [function(*tensors) for tensors in zip(x.unbind(), residual.unbind(), strict=True)]
        return tuple(map(torch.nested.as_nested_tensor, map(list, zip(*each, strict=True))))
    if residual.shape != x.shape:
        raise ValueError(f"residual: expected the shape of x, {list(x.shape)}, got {list(residual.shape)}")
    if x._ragged_idx == x.dim() - 1:
        raise ValueError("x: expected rows of one length, got a jagged tensor whose last dimension is ragged")
    results = function(x.values(), residual.values())
    structure = x.offsets(), x.lengths(), x._ragged_idx
    return tuple(torch.nested.nested_tensor_from_jagged(y, *structure) for y in results)


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


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, eps: float | None = 1e-6
) -> tuple[Tensor, Tensor]:
    """A residual add and RMSNorm over the last dimension: h = x + residual, and h / sqrt(mean(h^2) + eps) * weight.

    The functions, and the dtypes, of `h = x + residual` and `torch.nn.functional.rms_norm(h, (N,), weight, eps)`: h is
    rounded to its dtype before the norm is taken of it, and the norm is computed in fp32 and rounded once, to the dtype
    of h (under CUDA autocast to fp32, where the installed torch does so). What those have and this has not: x and
    residual of shapes that broadcast, several normalized dimensions, fp64 and complex numbers, double backward,
    torch.func and forward-mode AD.

    Args:
        x: [..., N], fp32, fp16 or bf16, with any strides; nested, too. Rows without unit stride are copied first.
        residual: of the shape of x, likewise; its dtype may differ, and h then has the dtype that PyTorch promotes to.
        weight: [N], fp32, fp16 or bf16; its dtype may differ, too. None: as if of ones.
        eps: added to the mean square. None: 2^-23, that of fp32, as F.rms_norm has it for all of these dtypes.

    Returns:
        (normed, new_residual): the norm, and h. New contiguous tensors of the shape of x. Gradients flow to x, residual
        and weight, each in its own dtype; the weight's is bitwise the same in every run, and costs nothing where it is
        not asked for.

    Raises:
        TypeError: x, residual or weight is not a tensor of one of these dtypes; weight is nested, or one of x and
            residual alone; or eps is not a number.
        ValueError: x has no dimension, a last one that is jagged, or more than 2^30 rows or 2^26 columns; residual is
            not of the shape of x, or weight not [N]; one of them is on another device than x; or x is on a CPU while
            Triton's interpreter (TRITON_INTERPRET=1) is off.
        RuntimeError: in a backward with create_graph=True, since there is no double backward; inside torch.func (grad,
            jvp, vmap, ...) and in forward-mode AD, which are not supported either.

    Source: Zhang & Sennrich, "Root Mean Square Layer Normalization", 2019 (https://arxiv.org/abs/1910.07467).
    """
    if not isinstance(x, Tensor) or x.dtype not in _DTYPES:
        raise _wrong_type("x", x)
    if not isinstance(residual, Tensor) or residual.dtype not in _DTYPES:
        raise _wrong_type("residual", residual)
    if weight is not None and (not isinstance(weight, Tensor) or weight.dtype not in _DTYPES):
        raise _wrong_type("weight", weight)
    eps = _EPS if eps is None else eps
    if not isinstance(eps, _NUMBER):
        raise TypeError(f"eps: expected a number or None, got {type(eps)}")
    if x.is_nested or residual.is_nested:
        return _nested(lambda x, residual: add_rms_norm(x, residual, weight, eps), x, residual)  # type: ignore[return-value]
    shape = x.shape
    if not shape:
        raise ValueError("x: expected at least one dimension, got none")
    if residual.shape != shape:
        raise ValueError(f"residual: expected the shape of x, {list(shape)}, got {list(residual.shape)}")
    if residual.device != x.device:
        raise ValueError(f"residual: expected on {x.device}, where x is, got {residual.device}")
    if weight is not None and (weight.is_nested or weight.shape != (shape[-1],) or weight.device != x.device):
        _refuse_parameter("weight", weight, x)
    on_cuda = x.is_cuda
    if not on_cuda and x.is_cpu and not _INTERPRETED:
        raise ValueError("x: expected a GPU tensor, got one on the CPU (which needs TRITON_INTERPRET=1)")
    if forward_ad._current_level >= 0 or (_transforms() is not None and isinstance(_transforms(), _Transform)):
        _refuse_transforms(x, residual, weight)
    autocast = on_cuda and _AUTOCAST and _autocast("cuda")
    dtype = torch.float32 if autocast else torch.promote_types(x.dtype, residual.dtype)
    needed = _grad_enabled() and (
        x.requires_grad or residual.requires_grad or (weight is not None and weight.requires_grad)
    )
    if _compiling() or _modes() or _tracing() or _included(_PRE_DISPATCH):
        return _forward_op(x, residual, weight, eps, dtype, False)[:2]
    if needed:
        return _apply(x, residual, weight, eps, dtype)
    return _eager_forward(x, residual, weight, eps, dtype, False)[:2]

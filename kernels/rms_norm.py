# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The Ridgepoint authors
"""RMSNorm in Triton, forward and backward: one file to copy. It needs torch 2.11 or newer, and its triton.

    y = x * rstd * weight    with rstd = 1 / sqrt(mean(x^2) + eps) over the last dimension

Source: Zhang & Sennrich, "Root Mean Square Layer Normalization", 2019 (https://arxiv.org/abs/1910.07467).

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
def _load(ptr, cols, N, POLICY: tl.constexpr, CACHE: tl.constexpr):
    """Some columns of a row as fp32; of a weight that is not given, ones, which cost nothing."""
    if ptr is None:
        return tl.full(cols.shape, 1.0, tl.float32)
    else:
        block = tl.load(ptr + cols, mask=cols < N, other=0.0, eviction_policy=POLICY, cache_modifier=CACHE)
        return block.to(tl.float32)


@triton.jit(do_not_specialize=["x_stride", "N"])
def _forward_kernel(
    x_ptr, weight_ptr, y_ptr, rstd_ptr, x_stride, M, N, eps,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS short rows at a time, held in registers. Reads MN, writes MN."""
    x_stride, N = tl.cast(x_stride, tl.int64) * UNIT, N * UNIT
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    inside = (rows < M)[:, None] & (cols < N)[None, :]
    x = tl.load(x_ptr + rows[:, None] * x_stride + cols[None, :], mask=inside, other=0.0).to(tl.float32)
    weight = _load(weight_ptr, cols, N, "", "")
    rstd = tl.rsqrt(tl.sum(x * x, axis=1) / N + tl.cast(eps, tl.float32))
    tl.store(y_ptr + rows[:, None] * N + cols[None, :], x * rstd[:, None] * weight[None, :], mask=inside)
    if rstd_ptr is not None:  # a hundredth of the time at 1024 columns
        tl.store(rstd_ptr + rows, rstd, mask=rows < M)


# --8<-- [end:forward]


# --8<-- [start:forward-wide]
@triton.jit
def _unpacked(kept, zero):
    """As fp32, but made anew: if it knew that zero is one, the compiler would keep the fp32 of the first look."""
    if kept.dtype.primitive_bitwidth == 16:
        kept = (kept.to(tl.int16, bitcast=True) ^ zero).to(kept.dtype, bitcast=True)
    return kept.to(tl.float32)


@triton.jit
def _two_looks(
    x_ptr, weight_ptr, y_ptr, rstd_ptr, row, x_stride, N, eps,
    BLOCK: tl.constexpr, KEPT: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    CACHE: tl.constexpr = ".cg" if KEPT > 0 else ""  # past L1, which is for the tiles that are looked at again
    x_ptr, y_ptr = x_ptr + row * x_stride, y_ptr + row * N
    squares = tl.zeros([BLOCK], tl.float32)
    kept = ()
    for tile in tl.static_range(KEPT):
        cols = tile * BLOCK + tl.arange(0, BLOCK)
        kept = kept + (tl.load(x_ptr + cols, mask=cols < N, other=0.0, cache_modifier=CACHE),)
        x = kept[tile].to(tl.float32)
        squares += x * x
    # --8<-- [start:looks]
    for start in range(KEPT * BLOCK, N, BLOCK):
        x = _load(x_ptr, start + tl.arange(0, BLOCK), N, "evict_last", "")
        squares += x * x
    rstd = tl.rsqrt(tl.sum(squares) / N + tl.cast(eps, tl.float32))
    if rstd_ptr is not None:
        tl.store(rstd_ptr + row, rstd)
    for start in range(KEPT * BLOCK, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        weight = _load(weight_ptr, cols, N, "", CACHE)
        y = _load(x_ptr, cols, N, "evict_first", "") * rstd * weight
        tl.store(y_ptr + cols, y, mask=cols < N, cache_modifier=STORE)
    # --8<-- [end:looks]
    zero = (rstd < 0).to(tl.int16)
    for tile in tl.static_range(KEPT):
        cols = tile * BLOCK + tl.arange(0, BLOCK)
        weight = _load(weight_ptr, cols, N, "", CACHE)
        tl.store(y_ptr + cols, _unpacked(kept[tile], zero) * rstd * weight, mask=cols < N, cache_modifier=STORE)


@triton.jit(do_not_specialize=["x_stride", "N"])
def _forward_wide_kernel(
    x_ptr, weight_ptr, y_ptr, rstd_ptr, x_stride, M, N, eps,
    UNIT: tl.constexpr, BLOCK: tl.constexpr, KEPT: tl.constexpr, PROGRAMS: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """A row of any length, looked at twice. The second look comes from cache, and few registers let more rows run.

    Of the widest rows the cache has room for few: then PROGRAMS a multiprocessor take them one by one, and keep KEPT
    tiles of the row in registers. With PROGRAMS = 0, each program has one row.
    """
    x_stride, N = tl.cast(x_stride, tl.int64) * UNIT, N * UNIT
    row = tl.program_id(0).to(tl.int64)
    if PROGRAMS == 0:
        _two_looks(x_ptr, weight_ptr, y_ptr, rstd_ptr, row, x_stride, N, eps, BLOCK, KEPT, STORE)
    else:
        for index in tl.range(row, M, tl.num_programs(0)):
            row = tl.cast(index, tl.int64)
            _two_looks(x_ptr, weight_ptr, y_ptr, rstd_ptr, row, x_stride, N, eps, BLOCK, KEPT, STORE)


# --8<-- [end:forward-wide]


# The backward, with x_hat = x * rstd and g = dy * weight:
#     dx      = rstd * (g - x_hat * mean(g * x_hat))    the mean over the row
#     dweight = sum(dy * x_hat)                         the sum over all rows
# A program takes every P-th row (P programs) and keeps its share of dweight in registers. A second kernel adds the
# shares in a fixed order: no atomics, so dweight is bitwise the same in every run. No shares: dx alone is asked for.


# --8<-- [start:backward]
@triton.jit(do_not_specialize=["dy_stride", "x_stride", "N"])
def _backward_kernel(
    dy_ptr, x_ptr, weight_ptr, rstd_ptr, mean_ptr, dx_ptr, share_ptr, dy_stride, x_stride, M, N,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """ROWS rows at a time while the next ones are on their way. Reads 2MN, writes MN.

    Of a row the program has BLOCK columns: if that is not the WHOLE row, the mean is read.
    """
    dy_stride, x_stride, N = tl.cast(dy_stride, tl.int64) * UNIT, tl.cast(x_stride, tl.int64) * UNIT, N * UNIT
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    weight = _load(weight_ptr, cols, N, "", "")
    dweight = tl.zeros([ROWS, BLOCK], tl.float32)
    first = tl.program_id(0).to(tl.int64) * ROWS
    for start in tl.range(first, M, tl.num_programs(0) * ROWS, num_stages=STAGES):
        rows = tl.cast(start, tl.int64) + tl.arange(0, ROWS)  # the interpreter's start is a Python int
        inside = (rows < M)[:, None] & (cols < N)[None, :]
        x = tl.load(x_ptr + rows[:, None] * x_stride + cols[None, :], mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + rows[:, None] * dy_stride + cols[None, :], mask=inside, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + rows, mask=rows < M, other=0.0)[:, None]
        x_hat = x * rstd
        g = dy * weight[None, :]
        if WHOLE:
            mean = tl.sum(g * x_hat, axis=1) / N
        else:
            mean = tl.load(mean_ptr + rows, mask=rows < M, other=0.0)
        dx = (g - x_hat * mean[:, None]) * rstd
        tl.store(dx_ptr + rows[:, None] * N + cols[None, :], dx, mask=inside)
        if share_ptr is not None:
            dweight += dy * x_hat
    if share_ptr is not None:
        tl.store(share_ptr + tl.program_id(0).to(tl.int64) * N + cols, tl.sum(dweight, axis=0), mask=cols < N)


# --8<-- [end:backward]


# --8<-- [start:backward-wide]
@triton.jit(do_not_specialize=["dy_stride", "x_stride", "N"])
def _backward_wide_kernel(
    dy_ptr, x_ptr, weight_ptr, rstd_ptr, dx_ptr, share_ptr, dy_stride, x_stride, M, N,
    UNIT: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """One row at a time, in tiles, beside the share of dweight in registers.

    They are KEPT in registers, too, or looked at twice.
    """
    dy_stride, x_stride, N = tl.cast(dy_stride, tl.int64) * UNIT, tl.cast(x_stride, tl.int64) * UNIT, N * UNIT
    # one policy in both looks makes them one load, kept in registers; with more tiles there is no room
    WEIGHT: tl.constexpr = "" if TILES <= 2 else "evict_last"
    dweight = (tl.zeros([BLOCK], tl.float32),) * TILES
    # disable_licm: the masks and addresses of all tiles, hoisted out of the loop, would spill
    for index in tl.range(tl.program_id(0).to(tl.int64), M, tl.num_programs(0), disable_licm=True):
        row = tl.cast(index, tl.int64)
        dy_row, x_row, dx_row = dy_ptr + row * dy_stride, x_ptr + row * x_stride, dx_ptr + row * N
        rstd = tl.load(rstd_ptr + row)
        products = tl.zeros([BLOCK // 8], tl.float32)
        added, kept = (), ()
        for tile in tl.static_range(TILES):
            cols = tile * BLOCK + tl.arange(0, BLOCK)
            if KEPT:
                dy = tl.load(dy_row + cols, mask=cols < N, other=0.0, cache_modifier=".cg")
                x = tl.load(x_row + cols, mask=cols < N, other=0.0, cache_modifier=".cg")
                kept = kept + (dy, x)
                dy_x_hat = dy.to(tl.float32) * (x.to(tl.float32) * rstd)
            else:
                dy_x_hat = _load(dy_row, cols, N, "evict_last", "") * (_load(x_row, cols, N, "evict_last", "") * rstd)
            if share_ptr is not None:
                added = added + (dweight[tile] + dy_x_hat,)
            product = dy_x_hat * _load(weight_ptr, cols, N, WEIGHT, "")
            products += tl.sum(tl.reshape(product, [BLOCK // 8, 8]), axis=1)  # the eight that one thread has
        if share_ptr is not None:
            dweight = added
        mean = tl.sum(products) / N
        zero = (rstd < 0).to(tl.int16)
        for tile in tl.static_range(TILES):
            cols = tile * BLOCK + tl.arange(0, BLOCK)
            if KEPT:
                x_hat = _unpacked(kept[2 * tile + 1], zero) * rstd
                g = _unpacked(kept[2 * tile], zero) * _load(weight_ptr, cols, N, "", "")
            else:
                x_hat = _load(x_row, cols, N, "evict_first", "") * rstd
                g = _load(dy_row, cols, N, "evict_first", "") * _load(weight_ptr, cols, N, "", "")
            tl.store(dx_row + cols, (g - x_hat * mean) * rstd, mask=cols < N)
    if share_ptr is not None:
        for tile in tl.static_range(TILES):
            cols = tile * BLOCK + tl.arange(0, BLOCK)
            tl.store(share_ptr + tl.program_id(0).to(tl.int64) * N + cols, dweight[tile], mask=cols < N)


# --8<-- [end:backward-wide]


# --8<-- [start:sums]
@triton.jit(do_not_specialize=["dy_stride", "x_stride", "N"])
def _row_kernel(
    dy_ptr, x_ptr, weight_ptr, rstd_ptr, mean_ptr, dx_ptr, dy_stride, x_stride, N,
    UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """mean(g * x_hat) of one row of any length. Reads 2MN. Where dx alone is asked for, a second look writes it."""
    dy_stride, x_stride, N = tl.cast(dy_stride, tl.int64) * UNIT, tl.cast(x_stride, tl.int64) * UNIT, N * UNIT
    row = tl.program_id(0).to(tl.int64)
    dy_ptr, x_ptr = dy_ptr + row * dy_stride, x_ptr + row * x_stride
    FIRST: tl.constexpr = "" if dx_ptr is None else "evict_last"
    products = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        g = _load(dy_ptr, cols, N, FIRST, "") * _load(weight_ptr, cols, N, "", "")
        products += g * _load(x_ptr, cols, N, FIRST, "")
    rstd = tl.load(rstd_ptr + row)
    mean = tl.sum(products) * rstd / N
    if dx_ptr is None:
        tl.store(mean_ptr + row, mean)
    else:
        for start in range(0, N, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            x_hat = _load(x_ptr, cols, N, "evict_first", "") * rstd
            g = _load(dy_ptr, cols, N, "evict_first", "") * _load(weight_ptr, cols, N, "", "")
            tl.store(dx_ptr + row * N + cols, (g - x_hat * mean) * rstd, mask=cols < N)


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
    """With ROWS: whole rows in registers. Without: two looks."""
    if N <= 1024:
        block = triton.next_power_of_2(N)
        return _options(device, 128, ROWS=2048 // block, BLOCK=block)
    if N > 32768:  # one row a multiprocessor at a time, part of it in registers, and stores that pass the cache by
        return _options(device, 1024, BLOCK=8192, KEPT=4, PROGRAMS=1, STORE=".cs")
    # tiles by the bytes of a row; two at least, as wide as they go without much of the last hanging over the row's end
    size = N * bits // 16
    block = next(
        b for b in (8192, 4096, 2048, 1024)
        if b == 1024 or ((2 if b < 8192 else 4) * b <= size and b <= N and -N % b <= N // 6)
    )  # fmt: skip
    kept = -(-N // block) if 8192 < N <= 16384 and bits == 16 else 0  # tiles that wait in registers for the second look
    return _options(device, block // 8, BLOCK=block, KEPT=kept, PROGRAMS=0, STORE="")


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
    # 64 KiB of it at most for bf16: wider dtypes and AMD's smaller memory get a stage less
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
    x: Tensor, weight: Tensor | None, eps: float, dtype: torch.dtype, save: bool
) -> tuple[Tensor, Tensor]:
    y = torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)
    return y, x.new_empty(x.shape[:-1] if save else 0, dtype=torch.float32)


def _forward(x: Tensor, weight: Tensor | None, eps: float, dtype: torch.dtype, save: bool) -> tuple[Tensor, Tensor]:
    """y, and rstd where a backward is to come."""
    y, rstd = _forward_fake(x, weight, eps, dtype, save)
    if x.numel() == 0:
        return y, rstd
    N = x.shape[-1]
    M = x.numel() // N
    _checked(M, N)
    (x, x_stride), weight = _rows(x), weight if weight is None else weight.contiguous()
    unit = 8 if N % 8 == 0 == x_stride % 8 else 1
    sizes = x_stride // unit, N // unit
    options, saved = _forward_launch(N, 8 * x.element_size(), x.device), rstd if save else None
    with torch.cuda.device_of(x):  # triton launches on the current device
        if "ROWS" in options:
            grid = (-(-M // options["ROWS"]),)
            _forward_kernel[grid](x, weight, y, saved, sizes[0], M, sizes[1], eps, UNIT=unit, **options)
        else:
            programs = min(M, _device(x.device)[0] * options["PROGRAMS"] or M)
            _forward_wide_kernel[(programs,)](x, weight, y, saved, sizes[0], M, sizes[1], eps, UNIT=unit, **options)
    return y, rstd


def _backward_fake(
    dy: Tensor, x: Tensor, weight: Tensor | None, rstd: Tensor, parameters: bool
) -> tuple[Tensor, Tensor]:
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    return dx, torch.empty_like(weight, memory_format=torch.contiguous_format) if parameters else x.new_empty(0)


def _backward(dy: Tensor, x: Tensor, weight: Tensor | None, rstd: Tensor, parameters: bool) -> tuple[Tensor, Tensor]:
    """dx; dweight, empty where no gradient of parameters is asked for: then nothing is kept for it."""
    dx, dweight = _backward_fake(dy, x, weight, rstd, parameters)
    if x.numel() == 0:
        return dx, dweight.zero_()
    N = x.shape[-1]
    M = x.numel() // N
    (dy, dy_stride), (x, x_stride), weight = _rows(dy), _rows(x), weight if weight is None else weight.contiguous()
    unit = 8 if N % 8 == dy_stride % 8 == x_stride % 8 == 0 else 1
    sizes = dy_stride // unit, x_stride // unit, M, N // unit
    bits = 8 * x.element_size()
    options = {"UNIT": unit, **_backward_launch(N, bits, x.device), **({} if parameters else _alone(N, bits))}
    programs = min(_device(x.device)[0] * options.pop("PROGRAMS") or M, -(-M // options.get("ROWS", 1)))
    shares = x.new_empty((programs, N), dtype=torch.float32) if parameters else None
    with torch.cuda.device_of(x):
        if "TILES" in options:
            _backward_wide_kernel[(programs,)](dy, x, weight, rstd, dx, shares, *sizes, **options)
        else:
            mean = torch.empty_like(rstd) if parameters and not options["WHOLE"] else None
            if not options["WHOLE"]:
                outputs, strides = (mean, None if parameters else dx), sizes[:2]
                _row_kernel[(M,)](dy, x, weight, rstd, *outputs, *strides, sizes[3], UNIT=unit, **_row_launch(x.device))
            if options["WHOLE"] or parameters:
                grid = programs, -(-N // options["BLOCK"])
                _backward_kernel[grid](dy, x, weight, rstd, mean, dx, shares, *sizes, **options)
        if parameters:
            options = _sum_launch(N, x.device)
            _sum_shares_kernel[(-(-N // options["BLOCK"]),)](shares, dweight, programs, N, **options)
    return dx, dweight


# define and impl cost the host less per call than custom_op; fake tensors, torch.compile and opcheck work as well
_namespace = __name__.replace(".", "_")  # another copy of this file, in another package, has another
_library = torch.library.Library(_namespace, "FRAGMENT")
_FORWARD = "(Tensor x, Tensor? weight, float eps, ScalarType dtype, bool save) -> (Tensor, Tensor)"
_BACKWARD = "(Tensor dy, Tensor x, Tensor? weight, Tensor rstd, bool parameters) -> (Tensor, Tensor)"
for _name, _schema, _function, _meta in (
    ("rms_norm_forward", _FORWARD, _forward, _forward_fake),
    ("rms_norm_forward_eager", _FORWARD, _forward, _forward_fake),  # without a derivative: a Function has it
    ("rms_norm_backward", _BACKWARD, _backward, _backward_fake),
    ("rms_norm_backward_recorded", _BACKWARD, _backward, _backward_fake),  # refuses to be differentiated
):
    _library.define(_name + _schema)
    for _key in ("CUDA", "CPU"):  # AMD's GPUs are "CUDA" to torch; the CPU is for triton's interpreter
        _library.impl(_name, _function, _key)
    torch.library.register_fake(f"{_namespace}::{_name}", _meta, lib=_library)
_forward_op = getattr(torch.ops, _namespace).rms_norm_forward.default
_eager_forward = getattr(torch.ops, _namespace).rms_norm_forward_eager.default._op  # __call__ costs 0.3 us
_backward_op = getattr(torch.ops, _namespace).rms_norm_backward.default
_recorded_backward = getattr(torch.ops, _namespace).rms_norm_backward_recorded.default
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
        raise RuntimeError("rms_norm: expected a call outside torch.func (grad, jvp, vmap, ...) and "
                           "forward-mode AD, got one inside: this kernel has a plain backward only")  # fmt: skip


_ONCE = (
    "rms_norm: expected a backward without create_graph=True, got one with: it would lose the second derivative, "
    "which this kernel does not have"
)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, x: Tensor, weight: Tensor | None, eps: float, dtype: torch.dtype, computed: tuple[Tensor, ...] = ()
    ) -> Tensor:
        y, rstd = computed or _eager_forward(x, weight, eps, dtype, True)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, rstd)
        return y

    @staticmethod
    def backward(ctx, dy: Tensor | None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return None, None, None, None, None
        if forward_ad._current_level >= 0:
            _refuse_transforms(dy)
        if torch.is_grad_enabled():  # not once_differentiable, which lets a dy that needs no gradient pass
            raise RuntimeError(_ONCE)
        parameters = ctx.needs_input_grad[1]
        backward = _recorded_backward if _compiling() or _modes() else _backward_op
        dx, dweight = backward(dy, *ctx.saved_tensors, parameters)
        return dx, dweight if parameters else None, None, None, None


# Function.apply, but for what that does for torch.func, which is refused: 1.5 us
_apply = super(torch.autograd.Function, _RMSNorm).apply


def _differentiable(
    x: Tensor, weight: Tensor | None, eps: float, dtype: torch.dtype, save: bool
) -> tuple[Tensor, Tensor]:
    """The operator for autograd: its gradient is in every graph that holds it, whoever recorded that."""
    if forward_ad._current_level >= 0 or isinstance(_transforms(), _Transform):
        _refuse_transforms(x, weight)
    needed = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight))
    with torch._C._AutoDispatchBelowAutograd():
        y, rstd = _forward_op(x, weight, eps, dtype, save or needed)
    return _apply(x, weight, eps, dtype, (y, rstd)) if needed else y, rstd


class _Once(torch.autograd.Function):
    """The backward's operator for autograd: in a graph, it has a derivative no more than in eager code."""

    @staticmethod
    def forward(ctx, *arguments: object) -> tuple[Tensor, ...]:
        with torch._C._AutoDispatchBelowAutograd():
            return _recorded_backward(*arguments)

    @staticmethod
    def backward(ctx, *_: Tensor) -> None:
        raise RuntimeError(_ONCE)


_library.impl("rms_norm_forward", _differentiable, "Autograd")
_library.impl("rms_norm_backward_recorded", _Once.apply, "Autograd")
# torch's default, for an operator that has no derivative, costs the host 0.3 us
_library.impl("rms_norm_forward_eager", torch.library.fallthrough_kernel, "Autograd")


# --8<-- [end:autograd]


_DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # what is most used is found first
_NUMBER = (float, numbers.Real)  # NumPy's, too; the first is found sooner
_EPS = torch.finfo(torch.float32).eps  # what F.rms_norm takes for None, whatever the dtype: it computes in fp32
_INTERPRETED = not isinstance(_forward_kernel, triton.runtime.JITFunction)
# newer torch autocasts rms_norm to fp32 on a GPU; we do as the installed one does
_AUTOCAST = torch._C._dispatch_has_kernel_for_dispatch_key("aten::rms_norm", "AutocastCUDA")


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


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float | None = 1e-6) -> Tensor:
    """RMSNorm over the last dimension: x / sqrt(mean(x^2) + eps) * weight.

    The function, and the dtypes, of `torch.nn.functional.rms_norm(x, (N,), weight, eps)`: computed in fp32 and
    rounded once, to the dtype of x (under CUDA autocast to fp32, where the installed torch does so). What that has and
    this has not: several normalized dimensions, fp64 and complex numbers, double backward, torch.func and forward-mode
    AD.

    Args:
        x: [..., N], fp32, fp16 or bf16, with any strides; nested, too. Rows without unit stride are copied first.
        weight: [N], fp32, fp16 or bf16; its dtype may differ from that of x. None: as if of ones.
        eps: added to the mean square. None: 2^-23, that of fp32, as F.rms_norm has it for all of these dtypes.

    Returns:
        A new contiguous tensor of the shape of x. Gradients flow to x and to weight, each in its own dtype;
        the weight's is bitwise the same in every run, and costs nothing where it is not asked for.

    Raises:
        TypeError: x or weight is not a tensor of one of these dtypes; weight is nested; or eps is not a number.
        ValueError: x has no dimension, a last one that is jagged, or more than 2^30 rows or 2^26 columns; weight is not
            [N], or on another device than x; or x is on a CPU while Triton's interpreter (TRITON_INTERPRET=1) is off.
        RuntimeError: in a backward with create_graph=True, since there is no double backward; inside torch.func (grad,
            jvp, vmap, ...) and in forward-mode AD, which are not supported either.

    Source: Zhang & Sennrich, "Root Mean Square Layer Normalization", 2019 (https://arxiv.org/abs/1910.07467).
    """
    if not isinstance(x, Tensor) or (dtype := x.dtype) not in _DTYPES:
        raise _wrong_type("x", x)
    if weight is not None and (not isinstance(weight, Tensor) or weight.dtype not in _DTYPES):
        raise _wrong_type("weight", weight)
    eps = _EPS if eps is None else eps
    if not isinstance(eps, _NUMBER):
        raise TypeError(f"eps: expected a number or None, got {type(eps)}")
    if x.is_nested:
        return _nested(lambda t: rms_norm(t, weight, eps), x)
    shape = x.shape
    if not shape:
        raise ValueError("x: expected at least one dimension, got none")
    if weight is not None and (weight.is_nested or weight.shape != (shape[-1],) or weight.device != x.device):
        _refuse_parameter("weight", weight, x)
    on_cuda = x.is_cuda
    if not on_cuda and x.is_cpu and not _INTERPRETED:
        raise ValueError("x: expected a GPU tensor, got one on the CPU (which needs TRITON_INTERPRET=1)")
    if forward_ad._current_level >= 0 or (_transforms() is not None and isinstance(_transforms(), _Transform)):
        _refuse_transforms(x, weight)
    if on_cuda and _AUTOCAST and _autocast("cuda"):
        dtype = torch.float32
    needed = _grad_enabled() and (x.requires_grad or (weight is not None and weight.requires_grad))
    if _compiling() or _modes() or _tracing() or _included(_PRE_DISPATCH):
        return _forward_op(x, weight, eps, dtype, False)[0]
    if needed:
        return _apply(x, weight, eps, dtype)
    return _eager_forward(x, weight, eps, dtype, False)[0]

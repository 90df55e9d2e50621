# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The Ridgepoint authors
"""Softmax with dropout in Triton, forward and backward: one file to copy. It needs torch 2.11 or newer, and its triton.

    y = softmax(x) * mask / (1 - p)    over the last dimension; mask is 0 with probability p, else 1

The mask is never stored: each bit of it is a function of a seed, the row and the column, and the backward asks again.

Sources: Salmon, Moraes, Dror & Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", 2011
(https://doi.org/10.1145/2063384.2063405), for the random bits; Srivastava et al., "Dropout", 2014
(https://jmlr.org/papers/v15/srivastava14a.html).

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
from torch._functorch import config as functorch_config
from torch.autograd import forward_ad
from torch.fx import traceback
from torch.utils.checkpoint import CheckpointPolicy


# --8<-- [start:mask]
@triton.jit
def _philox(seed, c0, c1, c2, c3):
    """128 random bits a counter: Philox4x32 with 7 rounds, the fewest that pass BigCrush (Salmon et al.).

    tl.philox does the same, with two multiplications where one has both halves of a product.
    """
    key0, key1 = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    for _ in tl.static_range(7):
        a, b = c0.to(tl.uint64) * 0xD2511F53, c2.to(tl.uint64) * 0xCD9E8D57
        c0, c1 = (b >> 32).to(tl.uint32) ^ c1 ^ key0, b.to(tl.uint32)
        c2, c3 = (a >> 32).to(tl.uint32) ^ c3 ^ key1, a.to(tl.uint32)
        key0, key1 = key0 + 0x9E3779B9, key1 + 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def _keep(seed, row, group, threshold):
    """Which elements stay: 16 of the 128 bits for each of the eight of a group.

    It takes seed, row and column, and nothing else, so that every tile of every kernel finds the same mask.
    """
    row = row.to(tl.uint64)
    a, b, c, d = _philox(seed, group.to(tl.uint32), row.to(tl.uint32), (row >> 32).to(tl.uint32), row.to(tl.uint32) * 0)
    words = tl.join(tl.join(a, b), tl.join(c, d))
    numbers = tl.join(words, words << 16)  # the upper half of each is compared: the lower one can stay where it is
    return numbers >= tl.cast(threshold, tl.uint32) << 16


@triton.jit
def _masked(factor, seed, row, start, threshold, BLOCK: tl.constexpr):
    """The factor where an element stays, 0 where not, for the columns from start; without a seed all stay."""
    if seed is not None:
        keep = _keep(seed, row, start // 8 + tl.arange(0, BLOCK // 8), threshold)
        factor = tl.where(tl.reshape(keep, [BLOCK]), factor, factor * 0.0)  # NaN stays NaN, as in PyTorch
    return factor


# --8<-- [end:mask]


# --8<-- [start:forward]
@triton.jit
def _exp(x):
    return tl.exp2(x * 1.4426950408889634)  # half the instructions of tl.exp, which looks after subnormal results


@triton.jit(do_not_specialize=["threshold", "x_stride", "N"])
def _forward_kernel(
    x_ptr, seed_ptr, y_ptr, stats_ptr, x_stride, M, N, threshold, scale,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS rows at a time, held in registers. Reads MN, writes MN."""
    x_stride, N = tl.cast(x_stride, tl.int64) * UNIT, N * UNIT
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    inside = (rows < M)[:, None] & (cols < N)[None, :]
    x = tl.load(x_ptr + rows[:, None] * x_stride + cols[None, :], mask=inside, other=float("-inf")).to(tl.float32)
    top = tl.max(x, axis=1)
    e = _exp(x - top[:, None])
    inverse = 1.0 / tl.sum(e, axis=1)
    factor = (inverse * tl.cast(scale, tl.float32))[:, None]
    if seed_ptr is not None:
        keep = _keep(tl.load(seed_ptr), rows[:, None], tl.arange(0, BLOCK // 8)[None, :], threshold)
        factor = tl.where(tl.reshape(keep, [ROWS, BLOCK]), factor, factor * 0.0)  # NaN stays NaN, as in PyTorch
    tl.store(y_ptr + rows[:, None] * N + cols[None, :], e * factor, mask=inside)
    if stats_ptr is not None:
        tl.store(stats_ptr + rows, top, mask=rows < M)
        tl.store(stats_ptr + M + rows, inverse, mask=rows < M)


# --8<-- [end:forward]


# --8<-- [start:forward-wide]
@triton.jit
def _load(ptr, cols, N, OTHER: tl.constexpr, POLICY: tl.constexpr):
    return tl.load(ptr + cols, mask=cols < N, other=OTHER, eviction_policy=POLICY)


@triton.jit(do_not_specialize=["threshold", "x_stride", "N"])
def _forward_wide_kernel(
    x_ptr, seed_ptr, y_ptr, stats_ptr, x_stride, M, N, threshold, scale,
    UNIT: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row, held in registers in TILES that hardly hang over its end: bits for what is no element are lost work."""
    x_stride, N = tl.cast(x_stride, tl.int64) * UNIT, N * UNIT
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_stride
    y_ptr += row * N
    cols = tl.arange(0, BLOCK)
    tiles = ()
    for tile in tl.static_range(TILES):
        x = _load(x_ptr, tile * BLOCK + cols, N, float("-inf"), "")
        tiles = tiles + (x.to(tl.float32),)
    peaks = tiles[0]
    for tile in tl.static_range(1, TILES):
        peaks = tl.maximum(peaks, tiles[tile])
    top = tl.max(peaks)
    sums = tl.zeros([BLOCK], tl.float32)
    exps = ()
    for tile in tl.static_range(TILES):
        e = _exp(tiles[tile] - top)
        exps = exps + (e,)
        sums += e
    inverse = 1.0 / tl.sum(sums)
    factor = inverse * tl.cast(scale, tl.float32)
    seed = tl.load(seed_ptr) if seed_ptr is not None else None
    for tile in tl.static_range(TILES):
        y = exps[tile] * _masked(factor, seed, row, tile * BLOCK, threshold, BLOCK)
        tl.store(y_ptr + tile * BLOCK + cols, y, mask=tile * BLOCK + cols < N)
    if stats_ptr is not None:
        tl.store(stats_ptr + row, top)
        tl.store(stats_ptr + M + row, inverse)


# --8<-- [end:forward-wide]


# --8<-- [start:forward-widest]
@triton.jit(do_not_specialize=["threshold", "x_stride", "N"])
def _forward_widest_kernel(
    x_ptr, seed_ptr, y_ptr, stats_ptr, x_stride, M, N, threshold, scale,
    UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows of any length, looked at twice; the second look, from the end, meets what the cache has last seen."""
    x_stride, N = tl.cast(x_stride, tl.int64) * UNIT, N * UNIT
    last = (N - 1) // BLOCK * BLOCK
    seed = tl.load(seed_ptr) if seed_ptr is not None else None
    for index in tl.range(tl.program_id(0).to(tl.int64), M, tl.num_programs(0)):
        row = tl.cast(index, tl.int64)  # the interpreter's index is a Python int
        x_row, y_row = x_ptr + row * x_stride, y_ptr + row * N
        # of each eight elements a maximum, and a sum that is relative to it; finite at first, since inf - inf is NaN
        highest = tl.full([BLOCK // 8], -3.4028234663852886e38, tl.float32)
        sums = tl.zeros([BLOCK // 8], tl.float32)
        for start in range(0, N, BLOCK):
            x = _load(x_row, start + tl.arange(0, BLOCK), N, float("-inf"), "evict_last").to(tl.float32)
            eights = tl.reshape(x, [BLOCK // 8, 8])
            higher = tl.maximum(highest, tl.max(eights, axis=1))
            sums = sums * _exp(highest - higher) + tl.sum(_exp(eights - higher[:, None]), axis=1)
            highest = higher
        top = tl.max(highest)
        inverse = 1.0 / tl.sum(sums * _exp(highest - top))
        factor = inverse * tl.cast(scale, tl.float32)
        for start in range(0, N, BLOCK):
            cols = last - start + tl.arange(0, BLOCK)
            e = _exp(_load(x_row, cols, N, float("-inf"), "evict_first").to(tl.float32) - top)
            y = e * _masked(factor, seed, row, last - start, threshold, BLOCK)
            tl.store(y_row + cols, y, mask=cols < N)
        if stats_ptr is not None:
            tl.store(stats_ptr + row, top)
            tl.store(stats_ptr + M + row, inverse)


# --8<-- [end:forward-widest]


# The backward, with s = softmax(x) and g = dy * mask / (1 - p):
#     dx = s * (g - sum(g * s))    the sum over the row
# It has x and the row's maximum and sum, from which s is made again, as the mask is from the seed.


# --8<-- [start:backward]
@triton.jit(do_not_specialize=["threshold", "dy_stride", "x_stride", "N"])
def _backward_kernel(
    dy_ptr, x_ptr, seed_ptr, stats_ptr, dx_ptr, dy_stride, x_stride, M, N, threshold, scale,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS rows at a time, held in registers. Reads 2MN, writes MN."""
    dy_stride, x_stride, N = tl.cast(dy_stride, tl.int64) * UNIT, tl.cast(x_stride, tl.int64) * UNIT, N * UNIT
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    inside = (rows < M)[:, None] & (cols < N)[None, :]
    x = tl.load(x_ptr + rows[:, None] * x_stride + cols[None, :], mask=inside, other=float("-inf")).to(tl.float32)
    dy = tl.load(dy_ptr + rows[:, None] * dy_stride + cols[None, :], mask=inside, other=0.0).to(tl.float32)
    top = tl.load(stats_ptr + rows, mask=rows < M, other=0.0)
    inverse = tl.load(stats_ptr + M + rows, mask=rows < M, other=0.0)
    s = _exp(x - top[:, None]) * inverse[:, None]
    factor = tl.cast(scale, tl.float32)
    if seed_ptr is not None:
        keep = _keep(tl.load(seed_ptr), rows[:, None], tl.arange(0, BLOCK // 8)[None, :], threshold)
        factor = tl.where(tl.reshape(keep, [ROWS, BLOCK]), factor, 0.0)
    g = dy * factor
    dx = s * (g - tl.sum(g * s, axis=1)[:, None])
    tl.store(dx_ptr + rows[:, None] * N + cols[None, :], dx, mask=inside)


# --8<-- [end:backward]


# --8<-- [start:backward-wide]
@triton.jit(do_not_specialize=["threshold", "dy_stride", "x_stride", "N"])
def _backward_wide_kernel(
    dy_ptr, x_ptr, seed_ptr, stats_ptr, dx_ptr, dy_stride, x_stride, M, N, threshold, scale,
    UNIT: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row, of which registers hold x and dy as they came, dy with the mask on it: the mask is made once."""
    dy_stride, x_stride, N = tl.cast(dy_stride, tl.int64) * UNIT, tl.cast(x_stride, tl.int64) * UNIT, N * UNIT
    row = tl.program_id(0).to(tl.int64)
    dy_ptr += row * dy_stride
    x_ptr += row * x_stride
    dx_ptr += row * N
    cols = tl.arange(0, BLOCK)
    top, inverse = tl.load(stats_ptr + row), tl.load(stats_ptr + M + row)
    seed = tl.load(seed_ptr) if seed_ptr is not None else None
    dys, xs = (), ()
    for tile in tl.static_range(TILES):
        dy = _load(dy_ptr, tile * BLOCK + cols, N, 0.0, "")
        x = _load(x_ptr, tile * BLOCK + cols, N, float("-inf"), "")
        dys, xs = dys + (dy,), xs + (x,)
    products = tl.zeros([BLOCK], tl.float32)
    gs = ()
    for tile in tl.static_range(TILES):
        g = dys[tile].to(tl.float32) * _masked(1.0, seed, row, tile * BLOCK, threshold, BLOCK)
        products += g * _exp(xs[tile].to(tl.float32) - top)
        gs = gs + (g.to(dys[tile].dtype),)  # exact
    inverse_scaled = inverse * tl.cast(scale, tl.float32)
    mean = tl.sum(products) * inverse
    for tile in tl.static_range(TILES):
        # + 0.0: converted by the same expression as above, a tile would be kept as fp32, in twice the registers
        e = _exp((xs[tile] + 0.0).to(tl.float32) - top)
        dx = e * inverse_scaled * (gs[tile].to(tl.float32) - mean)
        tl.store(dx_ptr + tile * BLOCK + cols, dx, mask=tile * BLOCK + cols < N)


# --8<-- [end:backward-wide]


# --8<-- [start:backward-widest]
@triton.jit
def _tile(dy_row, x_row, seed, row, start, N, top, threshold, scale, BLOCK: tl.constexpr, POLICY: tl.constexpr):
    """exp(x - top) and g of one tile."""
    cols = start + tl.arange(0, BLOCK)
    e = _exp(_load(x_row, cols, N, float("-inf"), POLICY).to(tl.float32) - top)
    g = _load(dy_row, cols, N, 0.0, POLICY).to(tl.float32) * _masked(scale, seed, row, start, threshold, BLOCK)
    return e, g


@triton.jit(do_not_specialize=["threshold", "dy_stride", "x_stride", "N"])
def _backward_widest_kernel(
    dy_ptr, x_ptr, seed_ptr, stats_ptr, dx_ptr, dy_stride, x_stride, M, N, threshold, scale,
    UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows of any length, looked at twice. The mask is made twice, too."""
    dy_stride, x_stride, N = tl.cast(dy_stride, tl.int64) * UNIT, tl.cast(x_stride, tl.int64) * UNIT, N * UNIT
    last = (N - 1) // BLOCK * BLOCK
    scale = tl.cast(scale, tl.float32)
    seed = tl.load(seed_ptr) if seed_ptr is not None else None
    for index in tl.range(tl.program_id(0).to(tl.int64), M, tl.num_programs(0)):
        row = tl.cast(index, tl.int64)
        dy_row, x_row, dx_row = dy_ptr + row * dy_stride, x_ptr + row * x_stride, dx_ptr + row * N
        top, inverse = tl.load(stats_ptr + row), tl.load(stats_ptr + M + row)
        products = tl.zeros([BLOCK // 8], tl.float32)
        for start in range(0, N, BLOCK):
            e, g = _tile(dy_row, x_row, seed, row, start, N, top, threshold, scale, BLOCK, "evict_last")
            products += tl.sum(tl.reshape(e * g, [BLOCK // 8, 8]), axis=1)  # the eight that one thread has
        mean = tl.sum(products) * inverse
        for start in range(0, N, BLOCK):
            e, g = _tile(dy_row, x_row, seed, row, last - start, N, top, threshold, scale, BLOCK, "evict_first")
            cols = last - start + tl.arange(0, BLOCK)
            tl.store(dx_row + cols, e * inverse * (g - mean), mask=cols < N)


# --8<-- [end:backward-widest]


# --8<-- [start:launch]
# Chosen by row length from sweeps on an H100 and an H200; nothing is tuned at a user's first call. Threads, not
# warps, since an AMD warp has 64. A thread has 8 elements of a tile or a multiple: accesses of 16 bytes in bf16, and
# one call of Philox.


@functools.cache
def _device(device: torch.device) -> tuple[int, int]:
    """Multiprocessors, and threads a warp."""
    if device.type == "cpu":  # the interpreter
        return 2, 32
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, properties.warp_size


def _options(device: torch.device, threads: int, **constants: int) -> dict[str, int]:
    return {**constants, "num_warps": threads // _device(device)[1]}


def _whole(N: int, device: torch.device, each: int) -> dict[str, int]:
    """Whole rows in registers, padded to a power of two, `each` elements a thread."""
    block = max(8, triton.next_power_of_2(N))
    rows = max(1, 64 * each // block)
    return _options(device, rows * block // each, ROWS=rows, BLOCK=block)


def _tiled(N: int, device: torch.device) -> dict[str, int]:
    """A row in registers as 9 tiles at most, padded to the next tile alone: bits made for no element cost as much."""
    block = max(1024, triton.next_power_of_2(-(-N // 9)))
    return _options(device, block // 8, TILES=-(-N // block), BLOCK=block)


@functools.cache
def _forward_launch(N: int, bits: int, device: torch.device) -> dict[str, int]:
    """With ROWS: whole rows in registers. With TILES: one row. Else two looks, by PROGRAMS a multiprocessor (0: M)."""
    if N <= 1024:
        return _whole(N, device, each=32)
    if N / bits <= 1024:
        return _tiled(N, device)
    if N < 65536:
        return _options(device, 512, PROGRAMS=0, BLOCK=8192)
    return _options(device, 1024, PROGRAMS=0, BLOCK=16384)


@functools.cache
def _backward_launch(N: int, bits: int, device: torch.device) -> dict[str, int]:
    if N <= 1024:
        return _whole(N, device, each=32)
    if N <= 16384:
        padding = triton.next_power_of_2(N) - N
        return _whole(N, device, each=16) if 8 * padding <= N else _tiled(N, device)
    if N < 65536:
        return _options(device, 1024, PROGRAMS=0, BLOCK=8192)
    return _options(device, 1024, PROGRAMS=1, BLOCK=16384)


# --8<-- [end:launch]


# --8<-- [start:op]
_MOST_ROWS = _MOST_COLUMNS = 2**30  # indices of 32 bits have room for the largest tile beyond


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


def _odds(p: float) -> tuple[int, float]:
    """16 bits below the threshold drop an element; the scale is for that rate, so that the mean stays what it was."""
    threshold = round(p * 65536)
    return threshold, 65536 / (65536 - threshold) if threshold < 65536 else 0.0


def _forward_fake(x: Tensor, seed: Tensor | None, p: float, dtype: torch.dtype, save: bool) -> tuple[Tensor, Tensor]:
    y = torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)
    return y, x.new_empty((2, *x.shape[:-1]) if save else 0, dtype=torch.float32)


def _forward(x: Tensor, seed: Tensor | None, p: float, dtype: torch.dtype, save: bool) -> tuple[Tensor, Tensor]:
    """y, and where a backward is to come each row's maximum and the inverse of its sum."""
    y, stats = _forward_fake(x, seed, p, dtype, save)
    if x.numel() == 0:
        return y, stats
    N = x.shape[-1]
    M = x.numel() // N
    _checked(M, N)
    x, x_stride = _rows(x)
    unit = 8 if N % 8 == 0 == x_stride % 8 else 1
    arguments = x, seed, y, stats if save else None, x_stride // unit, M, N // unit, *_odds(p)
    options = {"UNIT": unit, **_forward_launch(N, 8 * x.element_size(), x.device)}
    with torch.cuda.device_of(x):  # triton launches on the current device
        if "ROWS" in options:
            _forward_kernel[(-(-M // options["ROWS"]),)](*arguments, **options)
        elif "TILES" in options:
            _forward_wide_kernel[(M,)](*arguments, **options)
        else:
            programs = options.pop("PROGRAMS") * _device(x.device)[0] or M
            _forward_widest_kernel[(min(programs, M),)](*arguments, **options)
    return y, stats


def _backward_fake(dy: Tensor, x: Tensor, stats: Tensor, seed: Tensor | None, p: float) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _backward(dy: Tensor, x: Tensor, stats: Tensor, seed: Tensor | None, p: float) -> Tensor:
    dx = _backward_fake(dy, x, stats, seed, p)
    if x.numel() == 0:
        return dx
    N = x.shape[-1]
    M = x.numel() // N
    (dy, dy_stride), (x, x_stride) = _rows(dy), _rows(x)
    unit = 8 if N % 8 == dy_stride % 8 == x_stride % 8 == 0 else 1
    arguments = dy, x, seed, stats, dx, dy_stride // unit, x_stride // unit, M, N // unit, *_odds(p)
    options = {"UNIT": unit, **_backward_launch(N, 8 * x.element_size(), x.device)}
    with torch.cuda.device_of(x):
        if "ROWS" in options:
            _backward_kernel[(-(-M // options["ROWS"]),)](*arguments, **options)
        elif "TILES" in options:
            _backward_wide_kernel[(M,)](*arguments, **options)
        else:
            programs = options.pop("PROGRAMS") * _device(x.device)[0] or M
            _backward_widest_kernel[(min(programs, M),)](*arguments, **options)
    return dx


# define and impl cost the host less per call than custom_op; fake tensors, torch.compile and opcheck work as well
_namespace = __name__.replace(".", "_")  # another copy of this file, in another package, has another
_library = torch.library.Library(_namespace, "FRAGMENT")
_FORWARD = "(Tensor x, Tensor? seed, float p, ScalarType dtype, bool save) -> (Tensor, Tensor)"
_BACKWARD = "(Tensor dy, Tensor x, Tensor stats, Tensor? seed, float p) -> Tensor"
for _name, _schema, _function, _meta in (
    ("softmax_dropout_forward", _FORWARD, _forward, _forward_fake),
    ("softmax_dropout_forward_eager", _FORWARD, _forward, _forward_fake),  # without a derivative: a Function has it
    ("softmax_dropout_backward", _BACKWARD, _backward, _backward_fake),
    ("softmax_dropout_backward_recorded", _BACKWARD, _backward, _backward_fake),  # refuses to be differentiated
):
    _library.define(_name + _schema)
    for _key in ("CUDA", "CPU"):  # AMD's GPUs are "CUDA" to torch; the CPU is for triton's interpreter
        _library.impl(_name, _function, _key)
    torch.library.register_fake(f"{_namespace}::{_name}", _meta, lib=_library)
_forward_op = getattr(torch.ops, _namespace).softmax_dropout_forward.default
_eager_forward = getattr(torch.ops, _namespace).softmax_dropout_forward_eager.default._op  # __call__ costs 0.3 us
_backward_op = getattr(torch.ops, _namespace).softmax_dropout_backward.default
_recorded_backward = getattr(torch.ops, _namespace).softmax_dropout_backward_recorded.default
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
        raise RuntimeError("softmax_dropout: expected a call outside torch.func (grad, jvp, vmap, ...) and "
                           "forward-mode AD, got one inside: this kernel has a plain backward only")  # fmt: skip


_ONCE = (
    "softmax_dropout: expected a backward without create_graph=True, got one with: it would lose the second "
    "derivative, which this kernel does not have"
)


class _SoftmaxDropout(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, x: Tensor, seed: Tensor | None, p: float, dtype: torch.dtype, computed: tuple[Tensor, ...] = ()
    ) -> Tensor:
        y, stats = computed or _eager_forward(x, seed, p, dtype, True)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, stats, seed)
        ctx.p = p
        return y

    @staticmethod
    def backward(ctx, dy: Tensor | None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return None, None, None, None, None
        if forward_ad._current_level >= 0:
            _refuse_transforms(dy)
        if torch.is_grad_enabled():  # not once_differentiable, which lets a dy that needs no gradient pass
            raise RuntimeError(_ONCE)
        backward = _recorded_backward if _compiling() or _modes() else _backward_op
        return backward(dy, *ctx.saved_tensors, ctx.p), None, None, None, None


# Function.apply, but for what that does for torch.func, which is refused: 1.5 us
_apply = super(torch.autograd.Function, _SoftmaxDropout).apply


def _differentiable(x: Tensor, seed: Tensor | None, p: float, dtype: torch.dtype, save: bool) -> tuple[Tensor, Tensor]:
    """The operator for autograd: its gradient is in every graph that holds it, whoever recorded that."""
    if forward_ad._current_level >= 0 or isinstance(_transforms(), _Transform):
        _refuse_transforms(x)
    needed = torch.is_grad_enabled() and x.requires_grad
    with torch._C._AutoDispatchBelowAutograd():
        y, stats = _forward_op(x, seed, p, dtype, save or needed)
    return _apply(x, seed, p, dtype, (y, stats)) if needed else y, stats


class _Once(torch.autograd.Function):
    """The backward's operator for autograd: in a graph, it has a derivative no more than in eager code."""

    @staticmethod
    def forward(ctx, *arguments: object) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            return _recorded_backward(*arguments)

    @staticmethod
    def backward(ctx, *_: Tensor) -> None:
        raise RuntimeError(_ONCE)


_library.impl("softmax_dropout_forward", _differentiable, "Autograd")
_library.impl("softmax_dropout_backward_recorded", _Once.apply, "Autograd")
# torch's default, for an operator that has no derivative, costs the host 0.3 us
_library.impl("softmax_dropout_forward_eager", torch.library.fallthrough_kernel, "Autograd")

# --8<-- [end:autograd]


# --8<-- [start:public]
def _seed_in_a_graph(x: Tensor) -> Tensor:
    """Under a memory budget below 1, a compiler may draw the seed anew in the backward, for another mask.

    It repeats the draw of the forward if the node looks like one of activation checkpointing. Other nodes stay as they
    are: a seed is saved, which costs less.
    """
    meta = traceback.current_meta  # of the node that is traced
    budget = meta.get("custom", {}).get("_region_activation_memory_budget")  # torch 2.13 and newer
    budget = functorch_config.activation_memory_budget if budget is None else budget
    repeated = budget != 1 and "recompute" not in meta
    if repeated:
        meta["recompute"] = CheckpointPolicy.PREFER_RECOMPUTE
    try:
        return torch.randint(2**63 - 1, (1,), device=x.device)
    finally:
        if repeated:
            del meta["recompute"]


# An operator that is traced into, so that the compiler sees randint: calls of that are never merged.
_library.define("softmax_dropout_seed(Tensor x) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
_library.impl("softmax_dropout_seed", _seed_in_a_graph, "CompositeImplicitAutograd")
_seed_op = getattr(torch.ops, _namespace).softmax_dropout_seed.default


_DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # what is most used is found first
_NUMBER = (float, numbers.Real)  # NumPy's, too; the first is found sooner
_INTERPRETED = not isinstance(_forward_kernel, triton.runtime.JITFunction)
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


def softmax_dropout(x: Tensor, p: float = 0.1, training: bool = True) -> Tensor:
    """Softmax over the last dimension, then dropout: every element is zero with probability p, else divided by 1 - p.

    The function, and the dtypes, of `torch.nn.functional.dropout(torch.nn.functional.softmax(x, -1), p, training)`:
    computed in fp32 and rounded once, to the dtype of x (under CUDA autocast to fp32, as softmax is). The mask is
    another one than PyTorch's. It follows `torch.manual_seed` and the generator of x's device: a call draws one seed
    there, on the device, so every replay of a captured CUDA graph has a mask of its own, and activation checkpointing
    meets the same one twice. What F.softmax and F.dropout have and this has not: other dimensions than the last (dim),
    the dtype and inplace arguments, fp64, a double backward, torch.func and forward-mode AD.

    Args:
        x: [..., N], fp32, fp16 or bf16, with any strides; nested, too. Rows without unit stride are copied first.
        p: the probability of zero, between 0 and 1, rounded to the nearest multiple of 2^-16: the rate of zeros is
            within 2^-17 of p. What stays is divided by 1 - p of the rounded p, so that the mean is right. Up to 2^-17
            nothing is dropped, and from 1 - 2^-17 on everything.
        training: without it nothing is dropped: the softmax alone.

    Returns:
        A new contiguous tensor of the shape of x. Gradients flow to x, in its dtype. For them x is kept, and two
        numbers a row; neither the softmax nor the mask.

    Raises:
        TypeError: x is not a tensor of one of these dtypes; p is no number, or training no bool.
        ValueError: x has no dimension, a last one that is jagged beside others, or more than 2^30 rows or columns; p is
            not between 0 and 1; or x is on a CPU while Triton's interpreter (TRITON_INTERPRET=1) is off.
        RuntimeError: in a backward with create_graph=True, since there is no double backward; inside torch.func (grad,
            jvp, vmap, ...) and in forward-mode AD, which are not supported either.

    Sources: Srivastava et al., "Dropout", 2014; Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011.
    """
    if not isinstance(x, Tensor) or (dtype := x.dtype) not in _DTYPES:
        raise _wrong_type("x", x)
    if x.is_nested:
        return _nested(lambda t: softmax_dropout(t, p, training), x)
    if x.dim() == 0:
        raise ValueError("x: expected at least one dimension, got none")
    if not isinstance(p, _NUMBER):
        raise TypeError(f"p: expected a number, the probability of dropping an element, got {type(p)}")
    if not 0.0 <= p <= 1.0:  # floats: a comparison with an int takes the host longer
        raise ValueError(f"p: expected the probability of dropping an element, between 0 and 1, got {p} "
                         "(the softmax is over the last dimension, and dim is no argument)")  # fmt: skip
    if not isinstance(training, bool):
        raise TypeError(f"training: expected a bool, got {type(training)}")
    on_cuda = x.is_cuda
    if not on_cuda and x.is_cpu and not _INTERPRETED:
        raise ValueError("x: expected a GPU tensor, got one on the CPU (which needs TRITON_INTERPRET=1)")
    if forward_ad._current_level >= 0 or (_transforms() is not None and isinstance(_transforms(), _Transform)):
        _refuse_transforms(x)
    p = round(float(p) * 65536.0) / 65536.0 if training else 0.0  # what 16 bits can decide, at both ends
    if on_cuda and _AUTOCAST and _autocast("cuda"):
        dtype = torch.float32
    needed = _grad_enabled() and x.requires_grad
    if _compiling() or _modes() or _tracing() or _included(_PRE_DISPATCH):
        return _forward_op(x, _seed_op(x) if 0.0 < p < 1.0 else None, p, dtype, False)[0]
    seed = torch.randint(2**63 - 1, (1,), device=x.device) if 0.0 < p < 1.0 else None
    if needed:
        return _apply(x, seed, p, dtype)
    return _eager_forward(x, seed, p, dtype, False)[0]


# --8<-- [end:public]

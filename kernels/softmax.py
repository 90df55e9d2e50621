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

import torch
import triton
import triton.language as tl
from torch import Tensor

_LOG2E = tl.constexpr(1.4426950408889634)
_LOWEST = tl.constexpr(torch.finfo(torch.float32).min)


# --8<-- [start:forward]
@triton.jit
def _exp(x):
    """tl.exp spends three more instructions on each number, for results below 2^-126: here they are 0."""
    return tl.exp2(x * _LOG2E)


@triton.jit
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


# --8<-- [start:online]
@triton.jit
def _nothing(LANES: tl.constexpr):
    """A maximum and a sum of nothing yet. The maximum is finite, for -inf - -inf would be NaN."""
    return tl.full([LANES], _LOWEST, tl.float32), tl.zeros([LANES], tl.float32)


@triton.jit
def _take_in(x, high, total):
    """The tile x into each lane's maximum and its sum of exp(x - maximum); a lane takes neighbours, one thread's."""
    x = tl.reshape(x.to(tl.float32), [high.shape[0], x.shape[0] // high.shape[0]])
    higher = tl.maximum(high, tl.max(x, axis=1))
    return higher, total * _exp(high - higher) + tl.sum(_exp(x - higher[:, None]), axis=1)


@triton.jit
def _combined(high, total):
    """The row's maximum, and 1 / its sum: the one exchange between threads."""
    top = tl.max(high)
    return top, 1 / tl.sum(total * _exp(high - top))


# --8<-- [end:online]


# --8<-- [start:forward-wide]
@triton.jit
def _load(ptr, cols, N, OTHER: tl.constexpr, POLICY: tl.constexpr):
    return tl.load(ptr + cols, mask=cols < N, other=OTHER, eviction_policy=POLICY)


@triton.jit
def _forward_wide_kernel(
    x_ptr, y_ptr, x_stride, N,
    BLOCK: tl.constexpr, LANES: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """A row of any length, looked at twice. The second look, from the end, meets what the cache has last seen."""
    N *= UNIT
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_stride * UNIT
    y_ptr += row * N
    high, total = _nothing(LANES)
    for start in range(0, N, BLOCK):
        x = _load(x_ptr, start + tl.arange(0, BLOCK), N, float("-inf"), "evict_last")
        high, total = _take_in(x, high, total)
    top, scale = _combined(high, total)
    last = (N - 1) // BLOCK * BLOCK
    for start in range(0, N, BLOCK):
        cols = last - start + tl.arange(0, BLOCK)
        x = _load(x_ptr, cols, N, float("-inf"), "evict_first").to(tl.float32)
        tl.store(y_ptr + cols, _exp(x - top) * scale, mask=cols < N)


# --8<-- [end:forward-wide]


# --8<-- [start:forward-widest]
@triton.jit
def _kept(ptr, there, TILES: tl.constexpr, BLOCK: tl.constexpr):
    """A row's first tiles, in registers, in the dtype of memory."""
    tiles = ()
    for tile in tl.static_range(TILES):
        offsets = tile * BLOCK + tl.arange(0, BLOCK)
        tiles = tiles + (tl.load(ptr + offsets, mask=there & (offsets >= 0), eviction_policy="evict_first"),)
    return tiles


@triton.jit
def _forward_widest_kernel(
    x_ptr, y_ptr, x_stride, M, N,
    KEEP: tl.constexpr, BATCH: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, PROGRAMS: tl.constexpr,
    AHEAD: tl.constexpr, STORE: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Rows too wide for the cache: KEEP tiles of one stay in registers, the others are looked at twice."""
    N *= UNIT
    first = tl.program_id(0).to(tl.int64)
    if AHEAD:
        kept = _kept(x_ptr + first * x_stride * UNIT, first < M, KEEP, BLOCK)
    batches = tl.cdiv(N - KEEP * BLOCK, BATCH * BLOCK)
    for index in tl.range(first, M, PROGRAMS, disable_licm=True):
        row = tl.cast(index, tl.int64)
        x_row, y_row = x_ptr + row * x_stride * UNIT, y_ptr + row * N
        if not AHEAD:
            kept = _kept(x_row, row < M, KEEP, BLOCK)
        high, total = _nothing(LANES)
        for tile in tl.static_range(KEEP):
            high, total = _take_in(kept[tile], high, total)
        for batch in range(batches):
            cols = KEEP * BLOCK + batch * (BATCH * BLOCK) + tl.arange(0, BLOCK)
            tiles = ()
            for tile in tl.static_range(BATCH):
                tiles = tiles + (_load(x_row, cols + tile * BLOCK, N, float("-inf"), "evict_last"),)
            for tile in tl.static_range(BATCH):
                high, total = _take_in(tiles[tile], high, total)
        top, scale = _combined(high, total)
        for batch in range(batches):
            cols = KEEP * BLOCK + (batches - 1 - batch) * (BATCH * BLOCK) + tl.arange(0, BLOCK)
            tiles = ()
            for tile in tl.static_range(BATCH):
                tiles = tiles + (_load(x_row, cols + tile * BLOCK, N, float("-inf"), "evict_first"),)
            for tile in tl.static_range(BATCH):
                y = _exp(tiles[tile].to(tl.float32) - top) * scale
                tl.store(y_row + cols + tile * BLOCK, y, mask=cols + tile * BLOCK < N, cache_modifier=STORE)
        for tile in tl.static_range(KEEP):
            # + 0.0: converted by the same expression as above, the tile would be kept as fp32, in twice the registers
            y = _exp((kept[tile] + 0.0).to(tl.float32) - top) * scale
            tl.store(y_row + tile * BLOCK + tl.arange(0, BLOCK), y, cache_modifier=STORE)
        if AHEAD:
            row += PROGRAMS
            kept = _kept(x_ptr + row * x_stride * UNIT, row < M, KEEP, BLOCK)


# --8<-- [end:forward-widest]


# The backward: dx = y * (dy - sum(dy * y)), the sum over the row.


# --8<-- [start:backward]
@triton.jit
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


# --8<-- [start:backward-wide]
@triton.jit
def _add(dy, y, total):
    """dy * y of a tile into each lane's sum."""
    product = dy.to(tl.float32) * y.to(tl.float32)
    return total + tl.sum(tl.reshape(product, [total.shape[0], y.shape[0] // total.shape[0]]), axis=1)


@triton.jit
def _backward_wide_kernel(
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
        total = _add(_load(dy_ptr, cols, N, 0.0, "evict_last"), _load(y_ptr, cols, N, 0.0, "evict_last"), total)
    mean = tl.sum(total)
    last = (N - 1) // BLOCK * BLOCK
    for start in range(0, N, BLOCK):
        cols = last - start + tl.arange(0, BLOCK)
        dy = _load(dy_ptr, cols, N, 0.0, "evict_first").to(tl.float32)
        y = _load(y_ptr, cols, N, 0.0, "evict_first").to(tl.float32)
        tl.store(dx_ptr + cols, y * (dy - mean), mask=cols < N)


# --8<-- [end:backward-wide]


# --8<-- [start:backward-widest]
@triton.jit
def _backward_widest_kernel(
    dy_ptr, y_ptr, dx_ptr, dy_stride, M, N,
    KEEP: tl.constexpr, BATCH: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, PROGRAMS: tl.constexpr,
    AHEAD: tl.constexpr, STORE: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Rows too wide for the cache, as in the forward."""
    N *= UNIT
    first = tl.program_id(0).to(tl.int64)
    if AHEAD:
        kept_dy = _kept(dy_ptr + first * dy_stride * UNIT, first < M, KEEP, BLOCK)
        kept_y = _kept(y_ptr + first * N, first < M, KEEP, BLOCK)
    batches = tl.cdiv(N - KEEP * BLOCK, BATCH * BLOCK)
    for index in tl.range(first, M, PROGRAMS, disable_licm=True):
        row = tl.cast(index, tl.int64)
        dy_row, y_row, dx_row = dy_ptr + row * dy_stride * UNIT, y_ptr + row * N, dx_ptr + row * N
        if not AHEAD:
            kept_dy = _kept(dy_row, row < M, KEEP, BLOCK)
            kept_y = _kept(y_row, row < M, KEEP, BLOCK)
        total = tl.zeros([LANES], tl.float32)
        for tile in tl.static_range(KEEP):
            total = _add(kept_dy[tile], kept_y[tile], total)
        for batch in range(batches):
            cols = KEEP * BLOCK + batch * (BATCH * BLOCK) + tl.arange(0, BLOCK)
            dys, ys = (), ()
            for tile in tl.static_range(BATCH):
                dys = dys + (_load(dy_row, cols + tile * BLOCK, N, 0.0, "evict_last"),)
                ys = ys + (_load(y_row, cols + tile * BLOCK, N, 0.0, "evict_last"),)
            for tile in tl.static_range(BATCH):
                total = _add(dys[tile], ys[tile], total)
        mean = tl.sum(total)
        for batch in range(batches):
            cols = KEEP * BLOCK + (batches - 1 - batch) * (BATCH * BLOCK) + tl.arange(0, BLOCK)
            dys, ys = (), ()
            for tile in tl.static_range(BATCH):
                dys = dys + (_load(dy_row, cols + tile * BLOCK, N, 0.0, "evict_first"),)
                ys = ys + (_load(y_row, cols + tile * BLOCK, N, 0.0, "evict_first"),)
            for tile in tl.static_range(BATCH):
                dx = ys[tile].to(tl.float32) * (dys[tile].to(tl.float32) - mean)
                tl.store(dx_row + cols + tile * BLOCK, dx, mask=cols + tile * BLOCK < N, cache_modifier=STORE)
        for tile in tl.static_range(KEEP):
            dx = (kept_y[tile] + 0.0).to(tl.float32) * ((kept_dy[tile] + 0.0).to(tl.float32) - mean)
            tl.store(dx_row + tile * BLOCK + tl.arange(0, BLOCK), dx, cache_modifier=STORE)
        if AHEAD:
            row += PROGRAMS
            kept_dy = _kept(dy_ptr + row * dy_stride * UNIT, row < M, KEEP, BLOCK)
            kept_y = _kept(y_ptr + row * N, row < M, KEEP, BLOCK)


# --8<-- [end:backward-widest]


# --8<-- [start:launch]
# Chosen by row length from sweeps on an H200; nothing is tuned at a user's first call. Threads, not warps, since an AMD
# warp has 64. A thread has 16 bytes of a tile or a multiple, and a lane is 16 bytes.
@functools.cache
def _device(device: torch.device) -> tuple[int, int]:
    """Multiprocessors, and threads a warp."""
    if device.type == "cpu":  # the interpreter
        return 2, 32
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, properties.warp_size


def _options(device: torch.device, threads: int, **constants: int | str) -> dict[str, int | str]:
    return {**constants, "num_warps": threads // _device(device)[1]}


def _rows_at_a_time(N: int, device: torch.device, tile: int, threads: int) -> dict[str, int | str]:
    block = triton.next_power_of_2(N)
    return _options(device, threads, ROWS=max(1, tile // block), BLOCK=block)


def _two_looks(N: int, bits: int, device: torch.device, widest: int) -> dict[str, int | str]:
    # two tiles at least, as wide as they go without much of the last one hanging over the row's end
    sizes = [size for size in (8192, 4096, 2048, 1024) if size <= widest]
    block = next(b for b in sizes if b == 1024 or (2 * b <= N and -N % b <= N // 6))
    return _options(device, block // 8, BLOCK=block, LANES=block * bits // 128)


def _keeping(
    N: int,
    bits: int,
    device: torch.device,
    keep: int,
    batch: int,
    ahead: int = 0,
    store: str = "",
    block: int = 8192,
    share: float = 1.0,
) -> dict[str, int | str]:
    """A program a multiprocessor, or fewer, or a program a row."""
    keep, lanes = min(keep * 16 // bits, N // block), block * bits // 128
    programs = int(_device(device)[0] * share) or 1 << 30
    constants = {"KEEP": keep, "BATCH": batch, "BLOCK": block, "LANES": lanes}
    return _options(device, block // 8, **constants, PROGRAMS=programs, AHEAD=ahead, STORE=store)


@functools.cache
def _forward_launch(N: int, bits: int, device: torch.device) -> dict[str, int | str]:
    """With ROWS: rows in registers; with KEEP: a part of a row; else two looks."""
    if N <= 1024:
        return _rows_at_a_time(N, device, 2048, 128)
    if N <= 32768:
        return _two_looks(N, bits, device, 4096 if N < 32768 else 8192)
    return _keeping(N, bits, device, 8, 2, share=0)


@functools.cache
def _backward_launch(N: int, bits: int, device: torch.device) -> dict[str, int | str]:
    if N <= 1024:
        return _rows_at_a_time(N, device, 2048, 128)
    if N <= 32768:
        return _two_looks(N, bits, device, 4096)
    return _keeping(N, bits, device, 4, 1, share=0)


# --8<-- [end:launch]


# --8<-- [start:op]
def _rows(t: Tensor) -> Tensor:
    """As M x N with neighbouring columns: a view where the strides allow one."""
    rows = t.reshape(-1, t.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _forward_fake(x: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)


def _forward(x: Tensor, dtype: torch.dtype) -> Tensor:
    y = _forward_fake(x, dtype)
    if x.numel() == 0:
        return y
    x = _rows(x)
    M, N = x.shape
    stride = x.stride(0)
    unit = 1 if N % 8 or stride % 8 else 8
    options = _forward_launch(N, 8 * x.element_size(), x.device)
    with torch.cuda.device_of(x):  # triton launches on the current device
        if "ROWS" in options:
            _forward_kernel[(-(-M // options["ROWS"]),)](x, y, stride // unit, M, N // unit, UNIT=unit, **options)
        elif "KEEP" in options:
            programs = min(M, options["PROGRAMS"])
            _forward_widest_kernel[(programs,)](x, y, stride // unit, M, N // unit, UNIT=unit, **options)
        else:
            _forward_wide_kernel[(M,)](x, y, stride // unit, N // unit, UNIT=unit, **options)
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
    options = _backward_launch(N, 8 * y.element_size(), y.device)
    with torch.cuda.device_of(y):
        if "ROWS" in options:
            _backward_kernel[(-(-M // options["ROWS"]),)](dy, y, dx, stride // unit, M, N // unit, UNIT=unit, **options)
        elif "KEEP" in options:
            programs = min(M, options["PROGRAMS"])
            _backward_widest_kernel[(programs,)](dy, y, dx, stride // unit, M, N // unit, UNIT=unit, **options)
        else:
            _backward_wide_kernel[(M,)](dy, y, dx, stride // unit, N // unit, UNIT=unit, **options)
    return dx


# define and impl cost the host less per call than custom_op; fake tensors, torch.compile and opcheck work as well
_library = torch.library.Library("ridgepoint", "FRAGMENT")
_library.define("softmax_forward(Tensor x, ScalarType dtype) -> Tensor")
_library.define("softmax_backward(Tensor dy, Tensor y, ScalarType dtype) -> Tensor")
for _key in ("CUDA", "CPU"):  # AMD's GPUs are "CUDA" to torch; the CPU is for triton's interpreter
    _library.impl("softmax_forward", _forward, _key)
    _library.impl("softmax_backward", _backward, _key)
torch.library.register_fake("ridgepoint::softmax_forward", _forward_fake, lib=_library)
torch.library.register_fake("ridgepoint::softmax_backward", _backward_fake, lib=_library)
_forward_op = torch.ops.ridgepoint.softmax_forward.default
_backward_op = torch.ops.ridgepoint.softmax_backward.default
# --8<-- [end:op]


# --8<-- [start:autograd]
class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, dtype: torch.dtype) -> Tensor:
        y = _forward_op(x, dtype)
        ctx.save_for_backward(y)  # not x: y is all that the backward needs
        ctx.dtype = x.dtype
        return y

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, None]:
        if torch.is_grad_enabled():  # not once_differentiable, which lets a dy that needs no gradient pass
            raise RuntimeError("softmax: expected a backward without create_graph=True, got one with: it would lose "
                               "the second derivative, which this kernel does not have")  # fmt: skip
        return _backward_op(dy, *ctx.saved_tensors, ctx.dtype), None


# --8<-- [end:autograd]


# --8<-- [start:public]
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_INTERPRETED = not isinstance(_forward_kernel, triton.runtime.JITFunction)
# torch autocasts softmax to fp32 on a GPU; we do as the installed one does
_AUTOCAST = torch._C._dispatch_has_kernel_for_dispatch_key("aten::softmax.int", "AutocastCUDA")


def softmax(x: Tensor) -> Tensor:
    """Softmax over the last dimension: exp(x - max) / sum(exp(x - max)).

    The function, and the dtypes, of `torch.nn.functional.softmax(x, -1)`: computed in fp32 and rounded once, to the
    dtype of x (under CUDA autocast to fp32, where the installed torch does so). As there, an entry of -inf becomes 0,
    and a row with a NaN, with +inf or of nothing but -inf becomes NaN.

    Args:
        x: [..., N], fp32, fp16 or bf16, with any strides. Rows without unit stride are copied first.

    Returns:
        A new contiguous tensor of the shape of x. The gradient flows to x, in its dtype; the forward keeps for it the
        result, and not x.

    Raises:
        TypeError: x is not a tensor of one of these dtypes.
        ValueError: x has no dimension, or is on a CPU while Triton's interpreter (TRITON_INTERPRET=1) is off.
        RuntimeError: in a backward with create_graph=True, since there is no double backward.

    Source: Milakov & Gimelshein, "Online normalizer calculation for softmax", 2018 (https://arxiv.org/abs/1805.02867).
    """
    if not isinstance(x, Tensor) or x.dtype not in _DTYPES:
        raise TypeError(f"x: expected an fp32, fp16 or bf16 tensor, got {getattr(x, 'dtype', type(x))}")
    if x.dim() == 0:
        raise ValueError("x: expected at least one dimension, got none")
    if x.device.type == "cpu" and not _INTERPRETED:
        raise ValueError("x: expected a GPU tensor, got one on the CPU (which needs TRITON_INTERPRET=1)")
    dtype = torch.float32 if _AUTOCAST and x.is_cuda and torch.is_autocast_enabled("cuda") else x.dtype
    if torch.is_grad_enabled() and x.requires_grad:
        return _Softmax.apply(x, dtype)
    return _forward_op(x, dtype)


# --8<-- [end:public]

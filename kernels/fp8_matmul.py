# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The Ridgepoint authors
"""Linear layers in fp8 in Triton, forward and backward: one file to copy. It needs torch 2.11 or newer, and its triton.

    y  = x @ weight.T     x [M, K], weight [N, K], both quantised along K
    dx = dy @ weight      both quantised along N
    dw = dy.T @ x         both quantised along M

A quantised tensor is q * scale, with q in fp8 and a scale in fp32 for each row, or for each strip of 1 x 128 and each
square of 128 x 128. Hopper's fp8 instructions take operands whose rows run along the sum, so dy.T, weight.T and x.T are
quantised into transposed copies.

Source: Micikevicius et al., "FP8 Formats for Deep Learning", 2022 (https://arxiv.org/abs/2209.05433). The strips and
squares: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024 (https://arxiv.org/abs/2412.19437).

Names: a product has operands a [M, K] and b [N, K]. Row indices are int64: offsets pass 2^31.
"""

import functools
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import forward_ad
from triton.tools.tensor_descriptor import TensorDescriptor

_SIDE = 128  # of strips and squares


# --8<-- [start:scale]
@triton.jit
def _scales(amax, LARGEST: tl.constexpr):
    """What makes of the largest magnitude the largest number of fp8, and its inverse.

    Below 1e-30 the inverse would be infinite: such rows lose precision instead. An inf or NaN becomes NaN in q.
    """
    amax = tl.maximum(amax, 1e-30)
    return tl.div_rn(amax, LARGEST), tl.div_rn(LARGEST, amax)


@triton.jit
def _largest(x, axis: tl.constexpr):
    return tl.max(tl.abs(x), axis=axis)


# --8<-- [end:scale]


# --8<-- [start:rows]
@triton.jit
def _rows_kernel(
    x_ptr, q_ptr, scale_ptr, x_stride, q_stride, K, LARGEST: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """A scale for each row: one look where the WHOLE row fits into registers, else a second one from cache."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr, q_ptr = x_ptr + row * x_stride, q_ptr + row * q_stride
    cols = tl.arange(0, BLOCK)
    if WHOLE:
        x = tl.load(x_ptr + cols, mask=cols < K, other=0.0).to(tl.float32)
        scale, inverse = _scales(_largest(x, 0), LARGEST)
        tl.store(q_ptr + cols, (x * inverse).to(q_ptr.dtype.element_ty), mask=cols < K)
    else:
        largest = tl.zeros([BLOCK], tl.float32)
        for start in range(0, K, BLOCK):
            x = tl.load(x_ptr + start + cols, mask=start + cols < K, other=0.0, eviction_policy="evict_last")
            largest = tl.maximum(largest, tl.abs(x.to(tl.float32)))
        scale, inverse = _scales(tl.max(largest, axis=0), LARGEST)
        for start in range(0, K, BLOCK):
            x = tl.load(x_ptr + start + cols, mask=start + cols < K, other=0.0, eviction_policy="evict_first")
            x = x.to(tl.float32) * inverse
            tl.store(q_ptr + start + cols, x.to(q_ptr.dtype.element_ty), mask=start + cols < K)
    tl.store(scale_ptr + row, scale)


# --8<-- [end:rows]


# --8<-- [start:tiles]
@triton.jit
def _columns_kernel(x_ptr, largest_ptr, x_stride, M, N, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The largest magnitude of each column. A maximum is the same in any order: atomics change no bit."""
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    largest = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(tl.program_id(1) * ROWS, M, tl.num_programs(1) * ROWS):
        rows = tl.cast(start, tl.int64) + tl.arange(0, ROWS)
        inside = (rows < M)[:, None] & (cols < N)[None, :]
        x = tl.load(x_ptr + rows[:, None] * x_stride + cols[None, :], mask=inside, other=0.0)
        largest = tl.maximum(largest, tl.abs(x.to(tl.float32)))
    bits = tl.max(largest, axis=0).to(tl.int32, bitcast=True)  # ordered as the numbers are, from zero on
    tl.atomic_max(largest_ptr + cols, bits, mask=cols < N)


@triton.jit
def _tiles_kernel(
    x_ptr, q_ptr, scale_ptr, largest_ptr, x_stride, q_stride, M, N,
    BY: tl.constexpr, TRANSPOSED: tl.constexpr, LARGEST: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """A square of x, quantised by whole rows of q, by strips or by squares; q is x or, TRANSPOSED, x.T."""
    across = tl.cdiv(N, SIDE)
    i, j = tl.program_id(0) // across, tl.program_id(0) % across
    rows, cols = i.to(tl.int64) * SIDE + tl.arange(0, SIDE), j.to(tl.int64) * SIDE + tl.arange(0, SIDE)
    inside = (rows < M)[:, None] & (cols < N)[None, :]
    x = tl.load(x_ptr + rows[:, None] * x_stride + cols[None, :], mask=inside, other=0.0).to(tl.float32)
    q_rows, q_cols, count, along = rows, cols, M, j
    if TRANSPOSED:
        x, inside = tl.trans(x), tl.trans(inside)
        q_rows, q_cols, count, along = cols, rows, N, i
    if BY == "row":
        largest = tl.load(largest_ptr + q_rows, mask=q_rows < count, other=0).to(tl.float32, bitcast=True)
        scale, inverse = _scales(largest, LARGEST)
        tl.store(scale_ptr + q_rows, scale, mask=(q_rows < count) & (along == 0))
        x *= inverse[:, None]
    elif BY == "strip":
        scale, inverse = _scales(_largest(x, 1), LARGEST)
        tl.store(scale_ptr + along.to(tl.int64) * count + q_rows, scale, mask=q_rows < count)
        x *= inverse[:, None]
    else:
        scale, inverse = _scales(tl.max(_largest(x, 1), axis=0), LARGEST)
        tl.store(scale_ptr + along * tl.cdiv(count, SIDE) + (j if TRANSPOSED else i), scale)
        x *= inverse
    tl.store(q_ptr + q_rows[:, None] * q_stride + q_cols[None, :], x.to(q_ptr.dtype.element_ty), mask=inside)


# --8<-- [end:tiles]


# --8<-- [start:matmul]
@triton.jit
def _place(tile, rows, cols, GROUP: tl.constexpr):
    """Row and column of a tile. GROUP rows of tiles go down before the next column: what they share stays in the L2."""
    first = tile // (GROUP * cols) * GROUP
    height = tl.minimum(rows - first, GROUP)
    within = tile % (GROUP * cols)
    return first + within % height, within // height


@triton.jit
def _put(c, c_to, row, col, M, N, TMA: tl.constexpr):
    if TMA:
        c_to.store([row, col], c.to(c_to.dtype))
    else:
        rows, cols = row + tl.arange(0, c.shape[0]).to(tl.int64), col + tl.arange(0, c.shape[1])
        inside = (rows < M)[:, None] & (cols < N)[None, :]
        tl.store(c_to + rows[:, None] * N + cols[None, :], c.to(c_to.dtype.element_ty), mask=inside)


@triton.jit
def _matmul_kernel(
    a_desc, b_desc, c_to, a_scale_ptr, b_scale_ptr, M, N, K,
    BY: tl.constexpr, TMA: tl.constexpr, SIDE: tl.constexpr, IMPRECISE: tl.constexpr, FLATTEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Tiles of c = a @ b.T, one after the other. A tile is written in PARTS, so that few registers hold it twice.

    BY is how b is scaled: "row" (then a is, too), "strip" or "square" (then a is by strips, and BLOCK_K is SIDE).
    """
    down, across = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), down * across, tl.num_programs(0), flatten=FLATTEN):
        i, j = _place(tile, down, across, GROUP)
        row, col = i * BLOCK_M, j * BLOCK_N
        rows, cols = row + tl.arange(0, BLOCK_M), col + tl.arange(0, BLOCK_N)
        c = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for k in range(tl.cdiv(K, BLOCK_K)):
            a = a_desc.load([row, k * BLOCK_K])
            b = b_desc.load([col, k * BLOCK_K])
            if BY == "row":
                c = tl.dot(a, b.T, c, max_num_imprecise_acc=IMPRECISE)
            else:  # the tensor cores' sum of 128 products goes into one of fp32
                scale = tl.load(a_scale_ptr + tl.cast(k, tl.int64) * M + rows, mask=rows < M, other=0.0)
                if BY == "square":
                    scale *= tl.load(b_scale_ptr + k * tl.cdiv(N, SIDE) + col // SIDE)
                    c += tl.dot(a, b.T) * scale[:, None]
                else:
                    of_b = tl.load(b_scale_ptr + tl.cast(k, tl.int64) * N + cols, mask=cols < N, other=0.0)
                    c += tl.dot(a, b.T) * (scale[:, None] * of_b[None, :])
        if BY == "row":
            of_a = tl.load(a_scale_ptr + rows, mask=rows < M, other=0.0)
            of_b = tl.load(b_scale_ptr + cols, mask=cols < N, other=0.0)
            c *= of_a[:, None] * of_b[None, :]  # one after the other, a large and a small scale could overflow
        if PARTS == 1:
            _put(c, c_to, row, col, M, N, TMA)
        else:
            left, right = tl.split(tl.permute(tl.reshape(c, [BLOCK_M, 2, BLOCK_N // 2]), [0, 2, 1]))
            if PARTS == 2:
                _put(left, c_to, row, col, M, N, TMA)
                _put(right, c_to, row, col + BLOCK_N // 2, M, N, TMA)
            else:
                SHAPE: tl.constexpr = [BLOCK_M, 2, BLOCK_N // 4]
                one, two = tl.split(tl.permute(tl.reshape(left, SHAPE), [0, 2, 1]))
                _put(one, c_to, row, col, M, N, TMA)
                _put(two, c_to, row, col + BLOCK_N // 4, M, N, TMA)
                one, two = tl.split(tl.permute(tl.reshape(right, SHAPE), [0, 2, 1]))
                _put(one, c_to, row, col + BLOCK_N // 2, M, N, TMA)
                _put(two, c_to, row, col + BLOCK_N // 4 * 3, M, N, TMA)


# --8<-- [end:matmul]


# --8<-- [start:launch]
# Chosen by shape for an H100; nothing is tuned at a user's first call.
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
def _shared_memory(device: torch.device) -> int:
    """Of a multiprocessor, in bytes; an H200's where there is no such GPU."""
    if device.type == "cpu" or (device.index or 0) >= torch.cuda.device_count():
        return 228 * 1024
    return torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor


@functools.cache
def _forward_launch(
    N: int, bits: int, device: torch.device, M: int = 8192, by: str = "row", fast: bool = True, K: int = 4096
) -> dict[str, int]:
    """Of one product, [M, N] of K terms. PROGRAMS a multiprocessor take tiles one by one; with 0, each has one tile."""
    whole = {"BLOCK_K": 128, "GROUP": 16, "PARTS": 1}
    square = whole | {"BLOCK_M": 128, "BLOCK_N": 128}
    if _shared_memory(device) < 200 * 1024:  # not measured: what fits into less
        return _options(device, 256, **square, PROGRAMS=0, FLATTEN=False, num_stages=2)
    if M <= 64:  # weights are read once: programs with much on its way
        few = whole | {"BLOCK_M": 64, "BLOCK_N": 32 if by != "row" and N >= 8192 else 64, "PROGRAMS": 0}
        if by == "row" and fast:
            return _options(device, 128, **few | {"BLOCK_K": 256}, FLATTEN=False, num_stages=5)
        return _options(device, 128, **few, FLATTEN=False, num_stages=8)
    # by blocks two programs of small tiles take turns: faster where b has strips, and in long sums of squares
    if by == "strip" or (by == "square" and K >= 8192):
        small = whole | {"BLOCK_M": 64, "BLOCK_N": 128}
        return _options(device, 128, **small, PROGRAMS=2, FLATTEN=False, num_stages=3)
    # what is added up in fp32 has registers of its own beside the tile; few tiles leave multiprocessors idle
    if by != "row" or not fast or _device(device)[0] > -(-M // 128) * -(-N // 256):
        return _options(device, 256, **square, PROGRAMS=1, FLATTEN=True, num_stages=4)
    wide = whole | {"BLOCK_M": 128, "BLOCK_N": 256, "PARTS": 4, "GROUP": 8 if N <= 4096 else 16}
    return _options(device, 256, **wide, PROGRAMS=1, FLATTEN=True, num_stages=4)


_backward_launch = _forward_launch  # its products are of the same kind


@functools.cache
def _rows_launch(K: int) -> dict[str, int]:
    block = min(max(triton.next_power_of_2(K), 256), 16384)
    return {"WHOLE": block >= K, "BLOCK": block, "num_warps": min(max(block // 512, 1), 16)}


@functools.cache
def _columns_launch(M: int, N: int, device: torch.device) -> tuple[int, int]:
    """Programs: one for each 128 columns, and several down the rows, to fill the GPU."""
    across = -(-N // 128)
    return across, max(1, min(4 * _device(device)[0] // across, -(-M // 64), 65535))


# --8<-- [end:launch]


# --8<-- [start:op]
@functools.cache
def _usable(name: str, device: torch.device) -> None:
    """Refuses what has no fp8 arithmetic, once for each device."""
    if device.type == "cpu" and not _INTERPRETED:
        raise ValueError(f"{name}: expected a GPU tensor, got one on the CPU (which needs TRITON_INTERPRET=1)")
    if device.type == "cuda" and (torch.version.hip or torch.cuda.get_device_capability(device) < _LEAST):
        got = torch.cuda.get_device_name(device)
        raise ValueError(f"{name}: expected on a GPU of NVIDIA's with fp8 (Ada, Hopper or newer), got on {got}")


_LEAST = 8, 9  # the compute capability from which on NVIDIA's GPUs have fp8; AMD's have other formats
_LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
_MOST = 2**30  # rows, and columns: indices of 32 bits have room for the largest tile beyond


def _checked(*tensors: Tensor) -> None:
    for t in tensors:
        if max(t.shape) > _MOST:
            raise ValueError(f"fp8_matmul: expected at most {_MOST} rows and columns, got {list(t.shape)}")


def _flat(t: Tensor) -> Tensor:
    """Rows of neighbouring columns: no copy where the strides allow that."""
    rows = t.reshape(-1, t.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _quantise_fake(x: Tensor, by: str, transposed: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows of q begin at multiples of 16 bytes, as the tensor memory accelerator wants them."""
    M, N = x.shape[::-1] if transposed else x.shape
    q = x.new_empty((M, -(-N // 16) * 16), dtype=dtype)[:, :N]
    sides = {"row": (M,), "strip": (-(-N // _SIDE), M), "square": (-(-N // _SIDE), -(-M // _SIDE))}[by]
    return q, x.new_empty(sides, dtype=torch.float32)


def _quantise(x: Tensor, by: str, transposed: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x or x.T in fp8, with a scale for each row, for each strip of a row or for each square of the result."""
    _usable("x", x.device)
    q, scale = _quantise_fake(x, by, transposed, dtype)
    if x.numel() == 0:
        return q, scale
    _checked(x)
    x, (M, N) = _flat(x), x.shape
    with torch.cuda.device_of(x):  # triton launches on the current device
        if by == "row" and not transposed:
            sizes = x.stride(0), q.stride(0), N
            _rows_kernel[(M,)](x, q, scale, *sizes, LARGEST=_LARGEST[dtype], **_rows_launch(N))
            return q, scale
        largest = None
        if by == "row":
            largest = torch.zeros(N, dtype=torch.int32, device=x.device)
            _columns_kernel[_columns_launch(M, N, x.device)](x, largest, x.stride(0), M, N, ROWS=16, BLOCK=128)
        grid = (-(-M // _SIDE) * -(-N // _SIDE),)
        _tiles_kernel[grid](
            x, q, scale, largest, x.stride(0), q.stride(0), M, N,
            BY=by, TRANSPOSED=transposed, LARGEST=_LARGEST[dtype], SIDE=_SIDE, num_warps=8,
        )  # fmt: skip
    return q, scale


def _aligned(q: Tensor) -> Tensor:
    """As the tensor memory accelerator reads it: rows of neighbouring numbers that begin at multiples of 16 bytes."""
    if q.stride(1) == 1 and q.stride(0) % 16 == 0 and q.data_ptr() % 16 == 0 and q.stride(0) >= q.shape[1]:
        return q
    copy = q.new_empty((q.shape[0], -(-q.shape[1] // 16) * 16))[:, : q.shape[1]]
    return copy.copy_(q)


def _multiply_fake(
    a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, by: str, fast: bool, dtype: torch.dtype
) -> Tensor:  # fmt: skip
    return a.new_empty((a.shape[0], b.shape[0]), dtype=dtype)


def _multiply(
    a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, by: str, fast: bool, dtype: torch.dtype
) -> Tensor:  # fmt: skip
    """a @ b.T. by: how b is scaled; a is by rows if b is, else by strips."""
    return _product(a, a_scale, b, b_scale, by, fast, dtype, _forward_launch)


def _product(
    a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, by: str, fast: bool, dtype: torch.dtype,
    table: Callable[..., dict[str, int]],
) -> Tensor:  # fmt: skip
    _usable("a", a.device)
    c = _multiply_fake(a, a_scale, b, b_scale, by, fast, dtype)
    (M, K), N = a.shape, b.shape[0]
    if c.numel() == 0 or K == 0:
        return c.zero_()
    _checked(a, b)
    options = dict(table(N, 8 * a.element_size(), a.device, M, by, fast, K))
    block_m, block_n, block_k = options["BLOCK_M"], options["BLOCK_N"], options["BLOCK_K"]
    tiles = -(-M // block_m) * -(-N // block_n)
    programs = min(tiles, _device(a.device)[0] * options.pop("PROGRAMS") or tiles)
    a, b, tma = _aligned(a), _aligned(b), N * c.element_size() % 16 == 0
    with torch.cuda.device_of(a):
        _matmul_kernel[(programs,)](
            TensorDescriptor(a, [M, K], [a.stride(0), 1], [block_m, block_k]),
            TensorDescriptor(b, [N, K], [b.stride(0), 1], [block_n, block_k]),
            TensorDescriptor(c, [M, N], [N, 1], [block_m, block_n // options["PARTS"]]) if tma else c,
            a_scale, b_scale, M, N, K,
            BY=by, TMA=tma, SIDE=_SIDE, IMPRECISE=None if fast else block_k, **options,
        )  # fmt: skip
    return c


def _ways(scales: str) -> tuple[str, str]:
    """How activations and weights are scaled."""
    return ("row", "row") if scales == "rows" else ("strip", "square")


def _forward_fake(
    x: Tensor, weight: Tensor, scales: str, gradients: torch.dtype, fast: bool, dtype: torch.dtype
) -> Tensor:  # fmt: skip
    return x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=dtype)


def _forward(
    x: Tensor, weight: Tensor, scales: str, gradients: torch.dtype, fast: bool, dtype: torch.dtype
) -> Tensor:  # fmt: skip
    _usable("x", x.device)
    if x.numel() == 0 or weight.numel() == 0:
        return _forward_fake(x, weight, scales, gradients, fast, dtype).zero_()
    rows = x.reshape(-1, x.shape[-1])
    _checked(rows, weight)
    of_x, of_weight = _ways(scales)
    a = _quantise(rows, of_x, False, torch.float8_e4m3fn)
    b = _quantise(weight, of_weight, False, torch.float8_e4m3fn)
    return _multiply(*a, *b, of_weight, fast, dtype).view(*x.shape[:-1], -1)


def _backward_fake(
    dy: Tensor, x: Tensor, weight: Tensor, scales: str, gradients: torch.dtype, fast: bool, of_x: bool, of_weight: bool
) -> tuple[Tensor, Tensor]:
    dx = torch.empty_like(x, memory_format=torch.contiguous_format) if of_x else x.new_empty(0)
    return dx, torch.empty_like(weight, memory_format=torch.contiguous_format) if of_weight else x.new_empty(0)


def _backward(
    dy: Tensor, x: Tensor, weight: Tensor, scales: str, gradients: torch.dtype, fast: bool, of_x: bool, of_weight: bool
) -> tuple[Tensor, Tensor]:
    """dx and dweight, empty where no gradient is asked for: then nothing is quantised for it either."""
    dx, dweight = _backward_fake(dy, x, weight, scales, gradients, fast, of_x, of_weight)
    if dy.numel() == 0 or x.numel() == 0:
        return dx.zero_(), dweight.zero_()
    by, by_square = _ways(scales)
    dy, rows = dy.reshape(-1, dy.shape[-1]), x.reshape(-1, x.shape[-1])
    if of_x:
        b = _quantise(weight, by_square, True, torch.float8_e4m3fn)
        a = _quantise(dy, by, False, gradients)
        dx = _product(*a, *b, by_square, fast, x.dtype, _backward_launch).view(x.shape)
    if of_weight:
        b = _quantise(rows, by, True, torch.float8_e4m3fn)
        a = _quantise(dy, by, True, gradients)
        dweight = _product(*a, *b, by, fast, weight.dtype, _backward_launch)
    return dx, dweight


# define and impl cost the host less per call than custom_op; fake tensors, torch.compile and opcheck work as well
_namespace = __name__.replace(".", "_")  # another copy of this file, in another package, has another
_library = torch.library.Library(_namespace, "FRAGMENT")
_HOW = "str scales, ScalarType gradients, bool fast"
_FORWARD = f"(Tensor x, Tensor weight, {_HOW}, ScalarType dtype) -> Tensor"
_BACKWARD = f"(Tensor dy, Tensor x, Tensor weight, {_HOW}, bool of_x, bool of_weight) -> (Tensor, Tensor)"
_QUANTISE = "(Tensor x, str by, bool transposed, ScalarType dtype) -> (Tensor, Tensor)"
_MULTIPLY = (
    "(Tensor a, Tensor a_scale, Tensor b, Tensor b_scale, str by, bool fast, ScalarType dtype) -> Tensor"
)  # fmt: skip
for _name, _schema, _function, _meta in (
    ("fp8_matmul_forward", _FORWARD, _forward, _forward_fake),
    ("fp8_matmul_forward_eager", _FORWARD, _forward, _forward_fake),  # without a derivative: a Function has it
    ("fp8_matmul_backward", _BACKWARD, _backward, _backward_fake),
    ("fp8_matmul_backward_recorded", _BACKWARD, _backward, _backward_fake),  # refuses to be differentiated
    ("fp8_matmul_quantise", _QUANTISE, _quantise, _quantise_fake),  # these two have no derivative, and need none
    ("fp8_matmul_multiply", _MULTIPLY, _multiply, _multiply_fake),
):
    _library.define(_name + _schema)
    for _key in ("CUDA", "CPU"):  # the CPU is for triton's interpreter
        _library.impl(_name, _function, _key)
    torch.library.register_fake(f"{_namespace}::{_name}", _meta, lib=_library)
_forward_op = getattr(torch.ops, _namespace).fp8_matmul_forward.default
_eager_forward = getattr(torch.ops, _namespace).fp8_matmul_forward_eager.default._op  # __call__ costs 0.3 us
_backward_op = getattr(torch.ops, _namespace).fp8_matmul_backward.default
_recorded_backward = getattr(torch.ops, _namespace).fp8_matmul_backward_recorded.default
_quantise_op = getattr(torch.ops, _library.ns).fp8_matmul_quantise.default
_multiply_op = getattr(torch.ops, _library.ns).fp8_matmul_multiply.default
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
        raise RuntimeError("fp8_linear: expected a call outside torch.func (grad, jvp, vmap, ...) and "
                           "forward-mode AD, got one inside: this kernel has a plain backward only")  # fmt: skip


_ONCE = (
    "fp8_linear: expected a backward without create_graph=True, got one with: it would lose the second derivative, "
    "which this kernel does not have"
)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, x: Tensor, weight: Tensor, scales: str, gradients: torch.dtype, fast: bool, dtype: torch.dtype,
        computed: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight)  # what is there already; the backward quantises anew, along another sum
        ctx.how = scales, gradients, fast
        return _eager_forward(x, weight, *ctx.how, dtype) if computed is None else computed

    @staticmethod
    def backward(ctx, dy: Tensor | None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return (None,) * 7
        if forward_ad._current_level >= 0:
            _refuse_transforms(dy)
        if torch.is_grad_enabled():  # not once_differentiable, which lets a dy that needs no gradient pass
            raise RuntimeError(_ONCE)
        of_x, of_weight = ctx.needs_input_grad[:2]
        backward = _recorded_backward if _compiling() or _modes() else _backward_op
        dx, dweight = backward(dy, *ctx.saved_tensors, *ctx.how, of_x, of_weight)
        return dx if of_x else None, dweight if of_weight else None, None, None, None, None, None


# Function.apply, but for what that does for torch.func, which is refused: 1.5 us
_apply = super(torch.autograd.Function, _Linear).apply


def _differentiable(x: Tensor, weight: Tensor, *how: object) -> Tensor:
    """The operator for autograd: its gradient is in every graph that holds it, whoever recorded that."""
    if forward_ad._current_level >= 0 or isinstance(_transforms(), _Transform):
        _refuse_transforms(x, weight)
    with torch._C._AutoDispatchBelowAutograd():
        y = _forward_op(x, weight, *how)
    needed = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    return _apply(x, weight, *how, y) if needed else y


class _Once(torch.autograd.Function):
    """The backward's operator for autograd: in a graph, it has a derivative no more than in eager code."""

    @staticmethod
    def forward(ctx, *arguments: object) -> tuple[Tensor, ...]:
        with torch._C._AutoDispatchBelowAutograd():
            return _recorded_backward(*arguments)

    @staticmethod
    def backward(ctx, *_: Tensor) -> None:
        raise RuntimeError(_ONCE)


_library.impl("fp8_matmul_forward", _differentiable, "Autograd")
_library.impl("fp8_matmul_backward_recorded", _Once.apply, "Autograd")
# torch's default, for an operator that has no derivative, costs the host 0.3 us
for _name in ("forward_eager", "quantise", "multiply"):
    _library.impl(f"fp8_matmul_{_name}", torch.library.fallthrough_kernel, "Autograd")


# --8<-- [end:autograd]


_DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # what is most used is found first
_INTERPRETED = not isinstance(_matmul_kernel, triton.runtime.JITFunction)
_SCALES = ("rows", "blocks")


def _wrong_type(name: str, t: object) -> TypeError:
    got = t.dtype if isinstance(t, Tensor) else type(t)
    return TypeError(f"{name}: expected an fp32, fp16 or bf16 tensor, got {got}")


def _checked_options(scales: object, fast: object, dtype: object) -> None:
    if not isinstance(scales, str) or scales not in _SCALES:
        raise ValueError(f"scales: expected 'rows' or 'blocks', got {scales!r}")
    _checked_output(fast, dtype)


def _checked_output(fast: object, dtype: object) -> None:
    if not isinstance(fast, bool):
        raise TypeError(f"fast_accumulation: expected True or False, got {type(fast)}")
    if dtype is not None and (not isinstance(dtype, torch.dtype) or dtype not in _DTYPES):
        raise ValueError(f"dtype: expected torch.float32, torch.float16 or torch.bfloat16, got {dtype!r}")


def _checked_fp8(name: str, dtype: object) -> None:
    if not isinstance(dtype, torch.dtype) or dtype not in _LARGEST:
        raise ValueError(f"{name}: expected torch.float8_e4m3fn or torch.float8_e5m2, got {dtype!r}")


def quantised(
    x: Tensor, scales: str = "rows", squares: bool = False, dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[Tensor, Tensor]:
    """A matrix in fp8 with its scales, for `fp8_matmul`: x is about q * scale. No gradient flows.

    Args:
        x: [M, K], fp32, fp16 or bf16, with any strides. Rows without unit stride are copied first.
        scales: "rows" for one a row, or "blocks" for one for each 128 columns of a row.
        squares: with "blocks", one scale for each 128 rows and 128 columns: weights.
        dtype: torch.float8_e4m3fn or torch.float8_e5m2.

    Returns:
        q, of the shape of x, and the scales in fp32: [M], [M, K / 128] or [M / 128, K / 128], rounded up. A row (strip,
        square) of zeros has q of zeros. One with an inf or NaN has NaN there in q. Where the largest magnitude is
        below 1e-30, precision is lost.

    Raises:
        TypeError: x is not a tensor of one of these dtypes, or squares is no bool.
        ValueError: x has not two dimensions, or more than 2^30 rows or columns; another option than these; or x is on
            a GPU without fp8, or on a CPU while Triton's interpreter (TRITON_INTERPRET=1) is off.
    """
    if not isinstance(x, Tensor) or x.dtype not in _DTYPES:
        raise _wrong_type("x", x)
    if x.is_nested:
        raise TypeError("x: expected a plain tensor, got a nested one")
    if x.dim() != 2:
        raise ValueError(f"x: expected two dimensions, got {x.dim()}")
    _checked_options(scales, True, None)
    if not isinstance(squares, bool):
        raise TypeError(f"squares: expected True or False, got {type(squares)}")
    if squares and scales == "rows":
        raise ValueError("squares: expected False with scales='rows', got True")
    _checked_fp8("dtype", dtype)
    by = "row" if scales == "rows" else "square" if squares else "strip"
    q, scale = _quantise_op(x.detach(), by, False, dtype)
    return q, scale.t()


def fp8_matmul(
    a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor,
    dtype: torch.dtype = torch.bfloat16, fast_accumulation: bool = True,
) -> Tensor:  # fmt: skip
    """a @ b.T of operands in fp8. No gradient flows.

    Args:
        a: [M, K], torch.float8_e4m3fn or torch.float8_e5m2.
        a_scale: fp32, [M], or [M, K / 128] rounded up.
        b: [N, K]. Its dtype may differ from that of a.
        b_scale: fp32, [N] where a_scale is [M]; else [N, K / 128] or [N / 128, K / 128], rounded up.
        dtype: of the result: torch.bfloat16, torch.float16 or torch.float32.
        fast_accumulation: whether the tensor cores alone add up, with fewer bits than fp32. With False, and always with
            scales by blocks, each sum of 128 products goes into a sum in fp32.

    Raises:
        TypeError: a or b is not in fp8, a scale not in fp32, or fast_accumulation is no bool.
        ValueError: the shapes or devices do not fit; dtype is none of these; more than 2^30 rows or columns; the GPU
            has no fp8, or a is on a CPU while Triton's interpreter (TRITON_INTERPRET=1) is off.
    """
    for name, t in (("a", a), ("b", b)):
        if not isinstance(t, Tensor) or t.dtype not in _LARGEST:
            got = t.dtype if isinstance(t, Tensor) else type(t)
            raise TypeError(f"{name}: expected a tensor in torch.float8_e4m3fn or torch.float8_e5m2, got {got}")
        if t.dim() != 2 or t.shape[1] != a.shape[1]:
            raise ValueError(f"{name}: expected two dimensions, the second as that of a, got {list(t.shape)}")
    _checked_output(fast_accumulation, dtype or "None")
    strips = -(-a.shape[1] // _SIDE)
    one_a_row = isinstance(a_scale, Tensor) and a_scale.dim() == 1
    of_a, of_b = (([t.shape[0]],) if one_a_row else ([t.shape[0], strips],) for t in (a, b))
    if not one_a_row:
        of_b = (*of_b, [-(-b.shape[0] // _SIDE), strips])
    for name, t, shapes in (("a_scale", a_scale, of_a), ("b_scale", b_scale, of_b)):
        if not isinstance(t, Tensor) or t.dtype != torch.float32:
            raise TypeError(f"{name}: expected an fp32 tensor, got {t.dtype if isinstance(t, Tensor) else type(t)}")
        if list(t.shape) not in shapes:
            expected = " or ".join(map(str, shapes))
            raise ValueError(f"{name}: expected shape {expected}, got {list(t.shape)}")
    for name, t in (("a_scale", a_scale), ("b", b), ("b_scale", b_scale)):
        if t.device != a.device:
            raise ValueError(f"{name}: expected on {a.device}, where a is, got {t.device}")
    by = "row" if one_a_row else "strip" if b_scale.shape[0] == b.shape[0] else "square"
    return _multiply_op(a, a_scale.t().contiguous(), b, b_scale.t().contiguous(), by, fast_accumulation, dtype)


def fp8_linear(
    x: Tensor, weight: Tensor, scales: str = "rows", gradients: torch.dtype = torch.float8_e4m3fn,
    fast_accumulation: bool = True, dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """x @ weight.T with both operands in fp8, in the place of `torch.nn.functional.linear`; so are its gradients.

    All three products quantise their operands anew, along their own sum. What F.linear has and this has not: a bias,
    fp64, nested tensors, a double backward, torch.func and forward-mode AD.

    Args:
        x: [..., K], fp32, fp16 or bf16, with any strides. Rows without unit stride are copied first.
        weight: [N, K], of the dtype of x; under autocast it may have another.
        scales: "rows": a scale for each row of an operand. "blocks": one for each 1 x 128 of x and of incoming
            gradients, and for each 128 x 128 of weight; each sum of 128 products then goes into a sum in fp32.
        gradients: what incoming gradients are quantised to: torch.float8_e4m3fn, or torch.float8_e5m2 with more range
            and fewer digits.
        fast_accumulation: with "rows", whether the tensor cores alone add up, with fewer bits than fp32.
        dtype: of the result. None: that of x; under autocast, autocast's.

    Returns:
        [..., N]. Gradients flow to x and to weight, each in its own dtype. All are bitwise the same in every run. A row
        of x with an inf or NaN gives NaN.

    Raises:
        TypeError: x or weight is not a tensor of one of these dtypes, or nested; they differ in dtype outside of
            autocast; fast_accumulation is no bool.
        ValueError: the shapes or devices do not fit; another option than these; more than 2^30 rows or columns; or x is
            on a GPU without fp8, or on a CPU while Triton's interpreter (TRITON_INTERPRET=1) is off.
        RuntimeError: in a backward with create_graph=True, since there is no double backward; inside torch.func (grad,
            jvp, vmap, ...) and in forward-mode AD, which are not supported either.

    Source: Micikevicius et al., "FP8 Formats for Deep Learning", 2022 (https://arxiv.org/abs/2209.05433).
    """
    if not isinstance(x, Tensor) or x.dtype not in _DTYPES:
        raise _wrong_type("x", x)
    if not isinstance(weight, Tensor) or weight.dtype not in _DTYPES:
        raise _wrong_type("weight", weight)
    if x.is_nested or weight.is_nested:
        raise TypeError(f"{'x' if x.is_nested else 'weight'}: expected a plain tensor, got a nested one")
    if x.dim() == 0:
        raise ValueError("x: expected at least one dimension, got none")
    if weight.dim() != 2 or weight.shape[1] != x.shape[-1]:
        raise ValueError(f"weight: expected shape [N, {x.shape[-1]}], got {list(weight.shape)}")
    if weight.device != x.device:
        raise ValueError(f"weight: expected on {x.device}, where x is, got {weight.device}")
    _checked_options(scales, fast_accumulation, dtype)
    _checked_fp8("gradients", gradients)
    casting = _autocast(x.device.type)
    if weight.dtype != x.dtype and not casting:
        raise TypeError(f"weight: expected {x.dtype}, as x has, got {weight.dtype}")
    if forward_ad._current_level >= 0 or (_transforms() is not None and isinstance(_transforms(), _Transform)):
        _refuse_transforms(x, weight)
    if dtype is None:
        dtype = torch.get_autocast_dtype(x.device.type) if casting else x.dtype
    how = scales, gradients, fast_accumulation, dtype
    needed = _grad_enabled() and (x.requires_grad or weight.requires_grad)
    if _compiling() or _modes() or _tracing() or _included(_PRE_DISPATCH):
        return _forward_op(x, weight, *how)
    if needed:
        return _apply(x, weight, *how)
    return _eager_forward(x, weight, *how)

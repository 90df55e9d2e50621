# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The Ridgepoint authors
"""A matmul with its epilogue in Triton, forward and backward: one file to copy. It needs torch 2.11 or newer.

    y = f(a @ b + bias) + residual    with f one of GELU, its tanh approximation, SiLU, ReLU squared, or nothing

Names: a is M x K, b is K x N, y is M x N. A program makes tiles of BM x BN and reads BK of K at a time. On GPUs with a
copy engine for tiles (TMA: Hopper and later) operands come by descriptors made on the host; elsewhere, and where the
strides of a tensor do not suit it, by pointers. All sums are in fp32 and in a fixed order.
"""

import functools
from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import forward_ad
from triton.compiler import CompiledKernel
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor


# --8<-- [start:activation]
@triton.jit
def _tanh(x):
    """One instruction, off by 2^-11 at most: little beside 1, but not beside a small f(x)."""
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def _activate(x, ACTIVATION: tl.constexpr, FAST: tl.constexpr):
    """f(x), and its slope f'(x), which costs nothing where it is not used: the compiler drops it."""
    if ACTIVATION == "relu2":
        kept = tl.where(x < 0, 0.0, x)
        return kept * kept, 2 * kept
    if ACTIVATION == "gelu":
        bell = tl.exp2(x * x * -0.7213475204444817)  # exp(-x^2 / 2)
        tail = bell * _mills(x)
        share = tl.where(x < 0, tail, 1 - tail)
        slope = share + x * bell * 0.3989422804014327
    else:
        u, du = x, 1.0
        if ACTIVATION == "gelu-tanh":  # (1 + tanh(v)) / 2 is sigmoid(2 v)
            u, du = x * (1.5957691216057308 + 0.07135481282553304 * x * x), 1.5957691216057308 + 0.2140644384766 * x * x
        if FAST:
            share = 0.5 + 0.5 * _tanh(0.5 * u)
        else:
            share = 1 / (1 + tl.exp2(u * -1.4426950408889634))
        slope = share + x * share * (1 - share) * du
    return x * share, slope


@triton.jit
def _mills(x):
    """Phi(-|x|) / exp(-x^2 / 2), fitted: off by 1e-7 at 0 and by 1e-6 at 13, where the exponential leaves fp32."""
    t = 1 / (1 + 0.25 * tl.abs(x))
    p = 0.3623279929161072 - 0.09568291902542114 * t
    p = -0.31067103147506714 + p * t
    p = 0.33054032921791077 + p * t
    p = -0.00735325925052166 + p * t
    p = 0.12418360263109207 + p * t
    p = 0.09647118300199509 + p * t
    return 0.00018415650993119925 + p * t


# --8<-- [end:activation]


@triton.jit
def _place(tile, rows, cols, GROUP: tl.constexpr):
    """Row and column of a tile. GROUP rows of tiles go down before the next column: what they share stays in the L2."""
    first = tile // (GROUP * cols) * GROUP
    height = tl.minimum(rows - first, GROUP)
    within = tile % (GROUP * cols)
    return first + within % height, within // height


@triton.jit
def _tile(t, row, col, row_stride, col_stride, ROWS, COLS, BY: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """R x C elements of a matrix of ROWS x COLS, zeros beyond its edge.

    BY: "rows" or "columns" for a descriptor of the matrix or of its transpose, "pointers" for any strides.
    """
    if BY == "rows":
        return t.load([row, col])
    elif BY == "columns":
        return t.load([col, row]).T
    else:
        rows, cols = row + tl.arange(0, R), col + tl.arange(0, C)
        places = rows.to(tl.int64)[:, None] * row_stride + cols.to(tl.int64)[None, :] * col_stride
        return tl.load(t + places, mask=(rows < ROWS)[:, None] & (cols < COLS)[None, :], other=0.0)


@triton.jit
def _sum(
    a, b, a_row, a_col, b_row, b_col, row, col, start, stop, M, N, K, A_BY: tl.constexpr, B_BY: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The tile of a @ b at (row, col), over the blocks of K from start to stop."""
    total = tl.zeros([BM, BN], tl.float32)
    for block in range(start, stop):
        of_a = _tile(a, row, block * BK, a_row, a_col, M, K, A_BY, BM, BK)
        of_b = _tile(b, block * BK, col, b_row, b_col, K, N, B_BY, BK, BN)
        total = tl.dot(of_a, of_b, total, input_precision=PRECISION)
    return total


@triton.jit
def _halves(t):
    """The left and the right half of a tile."""
    left_and_right = tl.reshape(t, [t.shape[0], 2, t.shape[1] // 2])
    return tl.split(tl.permute(left_and_right, [0, 2, 1]))


@triton.jit
def _store(t, part, row, col, M, N, BY: tl.constexpr):
    part = part.to(t.dtype if BY == "rows" else t.dtype.element_ty)
    if BY == "rows":
        t.store([row, col], part)
    else:
        rows, cols = row + tl.arange(0, part.shape[0]), col + tl.arange(0, part.shape[1])
        places = rows.to(tl.int64)[:, None] * N + cols[None, :]
        tl.store(t + places, part, mask=(rows < M)[:, None] & (cols < N)[None, :])


@triton.jit
def _finish(
    part, y, z, bias_ptr, residual_ptr, residual_row, row, col, M, N,
    Y_BY: tl.constexpr, ACTIVATION: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The epilogue: what follows the sum, before it is rounded once. z keeps what the activation's slope needs."""
    cols = col + tl.arange(0, part.shape[1])
    if bias_ptr is not None:
        part += tl.load(bias_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
    if z is not None:
        _store(z, part, row, col, M, N, Y_BY)
    if ACTIVATION is not None:
        part = _activate(part, ACTIVATION, FAST)[0]
    if residual_ptr is not None:
        rows = row + tl.arange(0, part.shape[0])
        inside = (rows < M)[:, None] & (cols < N)[None, :]
        places = rows.to(tl.int64)[:, None] * residual_row + cols[None, :]
        part += tl.load(residual_ptr + places, mask=inside, other=0.0).to(tl.float32)
    _store(y, part, row, col, M, N, Y_BY)


# --8<-- [start:matmul]
@triton.jit
def _matmul_kernel(
    a, b, y, z, bias_ptr, residual_ptr, a_row, a_col, b_row, b_col, residual_row, M, N, K,
    A_BY: tl.constexpr, B_BY: tl.constexpr, Y_BY: tl.constexpr, ACTIVATION: tl.constexpr, FAST: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GROUP: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Persistent: a program takes tile after tile, and asks for the next one's operands while it stores this one.

    The compiler makes one loop of the two (flatten). In PARTS, the epilogue needs less of the shared memory.
    """
    rows, cols, blocks = tl.cdiv(M, BM), tl.cdiv(N, BN), tl.cdiv(K, BK)
    programs = tl.num_programs(0)
    done = tl.program_id(0) - programs  # counts the stored tiles: the loop's own number is ahead of them
    for tile in tl.range(tl.program_id(0), rows * cols, programs, flatten=True):
        i, j = _place(tile, rows, cols, GROUP)
        total = _sum(
            a, b, a_row, a_col, b_row, b_col, i * BM, j * BN, 0, blocks, M, N, K, A_BY, B_BY, PRECISION, BM, BN, BK
        )
        done += programs
        i, j = _place(done, rows, cols, GROUP)
        row, col = i * BM, j * BN
        if PARTS == 1:
            _finish(total, y, z, bias_ptr, residual_ptr, residual_row, row, col, M, N, Y_BY, ACTIVATION, FAST)
        else:
            for half in tl.static_range(2):
                one = _halves(total)[half]
                at = col + half * (BN // 2)
                if PARTS == 2:
                    _finish(one, y, z, bias_ptr, residual_ptr, residual_row, row, at, M, N, Y_BY, ACTIVATION, FAST)
                else:
                    for quarter in tl.static_range(2):
                        _finish(
                            _halves(one)[quarter], y, z, bias_ptr, residual_ptr, residual_row,
                            row, at + quarter * (BN // 4), M, N, Y_BY, ACTIVATION, FAST,
                        )  # fmt: skip


# --8<-- [end:matmul]


# --8<-- [start:split]
@triton.jit
def _split_kernel(
    a, b, part_ptr, a_row, a_col, b_row, b_col, M, N, K, SPLITS,
    A_BY: tl.constexpr, B_BY: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Few tiles leave multiprocessors idle, so SPLITS programs share one: each sums its piece of K."""
    if EARLY:
        gdc_launch_dependents()  # the next kernel may take its place, and waits there
    rows, cols, blocks = tl.cdiv(M, BM), tl.cdiv(N, BN), tl.cdiv(K, BK)
    tile, split = tl.program_id(0) % (rows * cols), tl.program_id(0) // (rows * cols)
    row, col = tile % rows * BM, tile // rows * BN
    start, stop = split * blocks // SPLITS, (split + 1) * blocks // SPLITS
    total = _sum(a, b, a_row, a_col, b_row, b_col, row, col, start, stop, M, N, K, A_BY, B_BY, PRECISION, BM, BN, BK)
    _store(part_ptr + split.to(tl.int64) * M * N, total, row, col, M, N, "pointers")


@triton.jit
def _join_kernel(
    part_ptr, y, z, bias_ptr, residual_ptr, residual_row, M, N,
    ACTIVATION: tl.constexpr, FAST: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Adds up the pieces in their order, so that the result is the same in every run, and finishes as above."""
    row, col = tl.program_id(0), tl.program_id(1) * BLOCK
    cols = col + tl.arange(0, BLOCK)
    places = row.to(tl.int64) * N + cols
    total = tl.zeros([BLOCK], tl.float32)
    if EARLY:
        gdc_wait()
    size = tl.num_programs(0).to(tl.int64) * N  # of a piece: M itself is no tensor where it is 1
    for split in tl.static_range(SPLITS):
        total += tl.load(part_ptr + split * size + places, mask=cols < N, other=0.0)
    _finish(total[None, :], y, z, bias_ptr, residual_ptr, residual_row, row, col, M, N, "pointers", ACTIVATION, FAST)


# --8<-- [end:split]


@triton.jit
def _slope_kernel(
    dy_ptr, z_ptr, dz_ptr, share_ptr, dy_row, dy_col, M, N, HEIGHT,
    ACTIVATION: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dz = dy * f'(z), and of each HEIGHT rows the sum: a share of the bias's gradient. Reads 2, writes 1."""
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first = tl.program_id(0) * HEIGHT
    share = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(first, tl.minimum(first + HEIGHT, M), ROWS):
        rows = (start + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (rows < M) & (cols < N)[None, :]
        places = rows * dy_row + cols.to(tl.int64)[None, :] * dy_col
        dz = tl.load(dy_ptr + places, mask=inside, other=0.0).to(tl.float32)
        if ACTIVATION is not None:
            z = tl.load(z_ptr + rows * N + cols[None, :], mask=inside, other=0.0).to(tl.float32)
            dz *= _activate(z, ACTIVATION, False)[1]
            tl.store(dz_ptr + rows * N + cols[None, :], dz, mask=inside)
        share += dz
    if share_ptr is not None:
        tl.store(share_ptr + tl.program_id(0).to(tl.int64) * N + cols, tl.sum(share, axis=0), mask=cols < N)


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


# --8<-- [start:launch]
# Tiles for 16-bit operands, from sweeps on an H100; nothing is tuned at a user's first call. PER: programs of a
# multiprocessor at a time. Threads, not warps, since an AMD warp has 64.
_TILES = (
    # BM, BN, BK, threads, stages, parts of the epilogue, PER, RATE
    (128, 256, 64, 256, 4, 4, 1, 1940),
    (128, 128, 64, 128, 5, 2, 1, 1900),
    (64, 64, 128, 128, 5, 1, 1, 1050),
    (64, 32, 256, 128, 4, 1, 1, 1070),
    (16, 64, 256, 128, 4, 1, 1, 505),
)
_TILES_OF_FP32 = (
    (128, 128, 32, 256, 3, 2, 1, 400),
    (64, 64, 32, 128, 3, 1, 2, 400),
)
_SPLITS = (1, 2, 3, 4, 8, 16)
# What a multiprocessor does in a clock, by a model that was fitted to the sweep: its RATE of multiplications and
# additions with a tile, and bytes that it loads; and the clocks that a tile takes beside, that a second kernel takes,
# and that all of them take to move a byte.
_LOADED, _TILE, _SECOND, _MOVED = 71, 1120, 360, 1 / 760


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
    """Bytes of a multiprocessor."""
    if device.type == "cpu":
        return 228 * 1024
    return torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor


@functools.cache
def _capability(device: torch.device) -> int:
    """The generation of an NVIDIA GPU: 9 is Hopper's. 0 of another maker's."""
    if device.type == "cpu":
        return 9
    return 0 if torch.version.hip else torch.cuda.get_device_capability(device)[0]


def _bytes(tile: tuple[int, ...], bits: int) -> int:
    """Of the operands of a tile, for a stage."""
    BM, BN, BK, *_ = tile
    return (BM + BN) * BK * bits // 8


def _clocks(tile: tuple[int, ...], splits: int, M: int, N: int, K: int, multiprocessors: int) -> float:
    """About what a matmul takes with these tiles: whole waves of them, of which each is computed or loaded."""
    BM, BN, BK, _, _, _, per, rate = tile
    blocks = -(-K // (BK * splits))
    work = -(-M // BM) * -(-N // BN) * splits
    waves = -(-work // (multiprocessors * per))
    block = max(BM * BN * BK / rate, (BM + BN) * BK * 2 / _LOADED)
    beside = 0 if splits == 1 else _SECOND + 8 * splits * M * N * _MOVED
    return waves * per * (blocks * block + _TILE) + beside


@functools.lru_cache(maxsize=512)  # shapes are many
def _forward_launch(K: int, bits: int, device: torch.device, M: int = 4096, N: int = 4096) -> dict[str, int]:
    """The tile, and into how many pieces K is split: what takes the fewest clocks by the model above."""
    multiprocessors, amd = _device(device)[0], _capability(device) == 0
    room = (_shared_memory(device) - 2048) * (1 + amd)  # AMD's second stage is in registers
    rows = 16 if M <= 16 else 64 if M <= 64 else 128  # of a tile: those beyond a's are for nothing
    candidates = [
        (tile, splits)
        for tile in (_TILES if bits == 16 else _TILES_OF_FP32)
        if (bits == 32 or tile[0] == rows) and 2 * _bytes(tile, bits) * tile[6] <= room
        for splits in _SPLITS
        if splits == 1 or 2 * splits * tile[2] <= K
    ]
    tile, splits = min(candidates, key=lambda c: _clocks(*c, M, N, K, multiprocessors))
    BM, BN, BK, threads, stages, parts, per, _ = tile
    if _capability(device) < 9:
        stages = 2 if amd else min(stages, room // (_bytes(tile, bits) * per))
    return _options(
        device, threads, SPLITS=splits, PER=per, BM=BM, BN=BN, BK=BK, GROUP=16, PARTS=parts, num_stages=stages
    )


@functools.cache
def _backward_launch(N: int, bits: int, device: torch.device) -> dict[str, int]:
    """Of the activation's slope, and of the bias's gradient."""
    block = 64 * 16 // bits
    return _options(device, 128, ROWS=2048 // block, BLOCK=block)


@functools.cache
def _sum_launch(N: int, device: torch.device) -> dict[str, int]:
    block = min(256, max(8, triton.next_power_of_2(N // (4 * _device(device)[0]))))  # some programs for everyone
    return _options(device, 128, ROWS=2048 // block, BLOCK=block)


# --8<-- [end:launch]


_runtime, _compilation = triton.knobs.runtime, triton.knobs.compilation  # debugging and instrumenting compile anew
_MOST = 2**30  # of M, N and K: indices of 32 bits have room for the largest tile beyond


def _by(strides: Sequence[int], size: int, device: torch.device, aligned: bool) -> str:
    """How tiles of a matrix are read: by a descriptor where its strides allow that, which are of 16 bytes."""
    if aligned and _capability(device) >= 9:
        for by, (other, one) in (("rows", strides), ("columns", strides[::-1])):
            if one == 1 and other > 0 and other * size % 16 == 0:
                return by
    return "pointers"


_Described = tuple[list[int], list[int], list[int]]  # shape, strides and block of a descriptor


def _operand(
    shape: Sequence[int], strides: Sequence[int], size: int, device: torch.device, aligned: bool, reads: int,
    *block: int,
) -> tuple[int, _Described | None, Sequence[int], str]:  # fmt: skip
    """How a kernel gets a matrix: the width of a copy, 0 for none, its descriptor, its strides, and by what.

    A copy is for what is read that often, where no descriptor suits it.
    """
    by, width = _by(strides, size, device, aligned), 0
    if by == "pointers" and reads > 256 and _capability(device) >= 9:
        by, width = "rows", -(-shape[1] // (16 // size)) * (16 // size)
        strides = width, 1
    if by == "pointers":
        return width, None, strides, by
    order = slice(None, None, 1 if by == "rows" else -1)
    return width, (list(shape[order]), list(strides[order]), list(block[order])), (1, 1), by


def _padded(t: Tensor, width: int) -> Tensor:
    return t.new_empty(t.shape[0], width)[:, : t.shape[1]].copy_(t) if width else t


def _precision(dtype: torch.dtype, tf32: bool) -> str:
    """How tensor cores multiply fp32: cut to TF32, or as three products of TF32, which keep what fp32 has."""
    if dtype != torch.float32 or not _PTX:
        return "ieee"
    return "tf32" if tf32 else _FP32


def _descriptor(t: Tensor, shape: list[int], strides: list[int], block: list[int]) -> TensorDescriptor:
    """Without the checks of its `__init__`, which take the host longer than the rest: `_by` has made them."""
    descriptor = object.__new__(TensorDescriptor)
    descriptor.base, descriptor.shape, descriptor.strides, descriptor.block_shape = t, shape, strides, block
    return descriptor


class _Launch:
    """A kernel, and all that it gets but tensors. Only in the first launch Triton looks for what it has compiled."""

    def __init__(
        self, kernel: triton.runtime.KernelInterface, grid: tuple[int, int, int],
        described: Sequence[_Described | None], *constants: object, **options: int,
    ) -> None:  # fmt: skip
        self.kernel, self.grid, self.described, self.constants = kernel, grid, described, constants
        self.options, self.compiled = options, None

    def __call__(self, *tensors: Tensor | None) -> None:
        arguments = [t if how is None else _descriptor(t, *how) for t, how in zip(tensors, self.described, strict=True)]
        if self.compiled is not None:
            self.compiled(*arguments, *self.constants)
            return
        compiled = self.kernel[self.grid](*arguments, *self.constants, **self.options)
        if _PTX and isinstance(compiled, CompiledKernel):  # AMD's depend on the size of a tensor's memory, too
            self.compiled = compiled[self.grid]


@functools.lru_cache(maxsize=512)  # shapes are many
def _planned(
    table: Callable[..., dict[str, int]], compiling: tuple[object, ...], dtype: torch.dtype, device: torch.device,
    a_shape: Sequence[int], a_strides: Sequence[int], b_shape: Sequence[int], b_strides: Sequence[int],
    residual_row: int, activation: str | None, tf32: bool, a_aligned: bool, b_aligned: bool, y_aligned: bool,
    z_aligned: bool | None, *_: bool | None,
) -> tuple[int, int, tuple[int, int, int], tuple[_Launch, ...]]:  # fmt: skip
    """The widths of copies of a and b, 0 for none, the shape of the split sums, and the launches.

    What Triton compiles hangs on these arguments alone, and so does all that a launch gets but addresses. Of those it
    asks whether 16 divides them: of bias and residual, the last two here, too.
    """
    (M, K), N, size = a_shape, b_shape[1], dtype.itemsize
    options = table(K, 8 * size, device, M, N)
    splits, per, group, parts = (options[name] for name in ("SPLITS", "PER", "GROUP", "PARTS"))
    BM, BN, BK = tile = [options[name] for name in ("BM", "BN", "BK")]
    launch = {name: options[name] for name in ("num_warps", "num_stages")}
    new, precision = _PTX and _capability(device) >= 9, _precision(dtype, tf32)
    finish = activation, _PTX and dtype == torch.bfloat16
    tiles, multiprocessors = -(-M // BM) * -(-N // BN), _device(device)[0]
    a_width, of_a, a_strides, a_by = _operand(a_shape, a_strides, size, device, a_aligned, N, BM, BK)
    b_width, of_b, b_strides, b_by = _operand(b_shape, b_strides, size, device, b_aligned, M, BK, BN)
    if splits == 1:
        y_by = "rows" if _by((N, 1), size, device, y_aligned and z_aligned is not False) == "rows" else "pointers"
        of_y = ([M, N], [N, 1], [BM, BN // parts]) if y_by == "rows" else None
        of_z = None if z_aligned is None else of_y
        launches = (_Launch(
            _matmul_kernel, (min(tiles, per * multiprocessors), 1, 1), (of_a, of_b, of_y, of_z, None, None),
            *a_strides, *b_strides, residual_row, M, N, K, a_by, b_by, y_by, *finish, precision, *tile, group, parts,
            **launch,
        ),)  # fmt: skip
    else:
        launches = _Launch(
            _split_kernel, (tiles * splits, 1, 1), (of_a, of_b, None),
            *a_strides, *b_strides, M, N, K, splits, a_by, b_by, precision, *tile, new, **launch,
        ), _Launch(
            _join_kernel, (M, -(-N // 512), 1), (None,) * 5, residual_row, M, N, *finish, splits, 512, new,
            **_options(device, 128), **({"launch_pdl": True} if new else {}),
        )  # fmt: skip
    return a_width, b_width, (splits, M, N), launches


def _product(
    a: Tensor, b: Tensor, y: Tensor, tf32: bool, z: Tensor | None = None, bias: Tensor | None = None,
    residual: Tensor | None = None, activation: str | None = None,
) -> None:  # fmt: skip
    """Writes y, and z if there is one: contiguous matrices of M x N, not empty."""
    if a.shape[1] == 0:  # a sum of nothing
        a, b = a.new_zeros(a.shape[0], 8), b.new_zeros(8, b.shape[1])
    a_width, b_width, pieces_shape, launches = _planned(
        _forward_launch, (_runtime.debug, _runtime.add_stages_inspection_hook, _compilation.instrumentation_mode),
        a.dtype, a.device, a.shape, a.stride(), b.shape, b.stride(), 1 if residual is None else residual.stride(0),
        activation, tf32, *[None if t is None else t.data_ptr() % 16 == 0 for t in (a, b, y, z, bias, residual)],
    )  # fmt: skip
    a, b = _padded(a, a_width), _padded(b, b_width)
    with torch.cuda.device_of(y):  # triton launches on the current device
        if len(launches) == 1:
            launches[0](a, b, y, z, bias, residual)
        else:
            pieces = y.new_empty(pieces_shape, dtype=torch.float32)
            launches[0](a, b, pieces)
            launches[1](pieces, y, z, bias, residual)


def _forward_fake(
    a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str | None, tf32: bool, save: bool
) -> tuple[Tensor, Tensor]:
    y = a.new_empty((*a.shape[:-1], b.shape[1]))
    return y, torch.empty_like(y) if save and activation else y.new_empty(0)


def _forward(
    a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str | None, tf32: bool, save: bool
) -> tuple[Tensor, Tensor]:
    """y, and where a backward is to come, what the activation got: reading it costs less than computing it again."""
    y, z = _forward_fake(a, b, bias, residual, activation, tf32, save)
    _forward_into(y, z if z.numel() else None, a, b, bias, residual, activation, tf32)
    return y, z


def _inference(
    a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str | None, tf32: bool
) -> Tensor:
    """y, where no backward is to come."""
    y = a.new_empty((*a.shape[:-1], b.shape[1]))
    _forward_into(y, None, a, b, bias, residual, activation, tf32)
    return y


def _forward_into(
    y: Tensor, z: Tensor | None, a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None,
    activation: str | None, tf32: bool,
) -> None:  # fmt: skip
    if y.numel() == 0:
        return
    if a.dim() != 2:
        a, y, z = _matrix(a), _matrix(y), None if z is None else _matrix(z)
    if residual is not None:
        residual = _matrix(residual)
        residual = residual if residual.stride(1) == 1 else residual.contiguous()
    bias = None if bias is None else bias.contiguous()
    _product(a, b, y, tf32, z, bias, residual, activation)


def _matrix(t: Tensor) -> Tensor:
    """All leading dimensions as one: no copy where the strides allow that."""
    return t.reshape(-1, t.shape[-1]) if t.numel() else t.reshape(t.shape[:-1].numel(), t.shape[-1])


def _backward_fake(
    dy: Tensor, a: Tensor, b: Tensor, z: Tensor, activation: str | None, tf32: bool, of: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    nothing = a.new_empty(0)
    da = torch.empty_like(a, memory_format=torch.contiguous_format) if of[0] else nothing
    db, dbias = nothing.clone(), nothing.clone()
    if of[1]:  # in the layout of b, which an optimizer's state has: a Linear's weight is the transpose of b
        db = b.new_empty(b.shape[::-1]).t() if _turned(b) else b.new_empty(b.shape)
    return da, db, b.new_empty(b.shape[1]) if of[2] else dbias


def _turned(b: Tensor) -> bool:
    return b.stride(0) == 1 != b.stride(1)


def _backward(
    dy: Tensor, a: Tensor, b: Tensor, z: Tensor, activation: str | None, tf32: bool, of: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """da, db and dbias; empty where it is not asked for."""
    da, db, dbias = _backward_fake(dy, a, b, z, activation, tf32, of)
    dy, a = _matrix(dy), _matrix(a)
    if dy.numel() == 0:
        return da.zero_(), db.zero_(), dbias.zero_()
    dz = _slope(dy, z if activation else None, dbias if of[2] else None, activation)
    if da.numel():
        _product(dz, b.t(), da.view(a.shape), tf32)
    if db.numel():
        if _turned(b):
            _product(dz.t(), a, db.t(), tf32)
        else:
            _product(a.t(), dz, db, tf32)
    return da, db, dbias


def _slope(dy: Tensor, z: Tensor | None, dbias: Tensor | None, activation: str | None) -> Tensor:
    """dz; writes dbias, if there is one."""
    if z is None and dbias is None:
        return dy
    M, N = dy.shape
    options = _backward_launch(N, 8 * dy.element_size(), dy.device)
    columns = -(-N // options["BLOCK"])
    programs = max(1, 16 * _device(dy.device)[0] // columns)
    height = -(-M // (programs * options["ROWS"])) * options["ROWS"]
    dz = dy if z is None else dy.new_empty(M, N)
    shares = None if dbias is None else dy.new_empty((-(-M // height), N), dtype=torch.float32)
    with torch.cuda.device_of(dy):
        _slope_kernel[(-(-M // height), columns)](
            dy, z, None if z is None else dz, shares, *dy.stride(), M, N, height, activation, **options
        )
        if dbias is not None:
            options = _sum_launch(N, dy.device)
            _sum_shares_kernel[(-(-N // options["BLOCK"]),)](shares, dbias, shares.shape[0], N, **options)
    return dz


# define and impl cost the host less per call than custom_op; fake tensors, torch.compile and opcheck work as well
_namespace = __name__.replace(".", "_")  # another copy of this file, in another package, has another
_library = torch.library.Library(_namespace, "FRAGMENT")
_FORWARD = (
    "(Tensor a, Tensor b, Tensor? bias, Tensor? residual, str? activation, bool tf32, bool save) -> (Tensor, Tensor)"
)
_INFERENCE = "(Tensor a, Tensor b, Tensor? bias, Tensor? residual, str? activation, bool tf32) -> Tensor"
_BACKWARD = (
    "(Tensor dy, Tensor a, Tensor b, Tensor z, str? activation, bool tf32, bool[3] of) -> (Tensor, Tensor, Tensor)"
)
for _name, _schema, _function, _meta in (
    ("matmul_forward", _FORWARD, _forward, _forward_fake),
    ("matmul_forward_eager", _FORWARD, _forward, _forward_fake),  # without a derivative: a Function has it
    ("matmul_inference", _INFERENCE, _inference, lambda *inputs: _forward_fake(*inputs, False)[0]),
    ("matmul_backward", _BACKWARD, _backward, _backward_fake),
    ("matmul_backward_recorded", _BACKWARD, _backward, _backward_fake),  # refuses to be differentiated
):
    _library.define(_name + _schema)
    for _key in ("CUDA", "CPU"):  # AMD's GPUs are "CUDA" to torch; the CPU is for triton's interpreter
        _library.impl(_name, _function, _key)
    torch.library.register_fake(f"{_namespace}::{_name}", _meta, lib=_library)
_forward_op = getattr(torch.ops, _namespace).matmul_forward.default
_eager_forward = getattr(torch.ops, _namespace).matmul_forward_eager.default._op  # __call__ costs 0.3 us
_inference_op = getattr(torch.ops, _namespace).matmul_inference.default._op
_backward_op = getattr(torch.ops, _namespace).matmul_backward.default
_recorded_backward = getattr(torch.ops, _namespace).matmul_backward_recorded.default


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
        raise RuntimeError("matmul: expected a call outside torch.func (grad, jvp, vmap, ...) and "
                           "forward-mode AD, got one inside: this kernel has a plain backward only")  # fmt: skip


_ONCE = (
    "matmul: expected a backward without create_graph=True, got one with: it would lose the second derivative, "
    "which this kernel does not have"
)


class _Matmul(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str | None, tf32: bool,
        computed: tuple[Tensor, ...] = (),
    ) -> Tensor:  # fmt: skip
        y, z = computed or _eager_forward(a, b, bias, residual, activation, tf32, True)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(a, b, z)
        ctx.options = activation, tf32
        return y

    @staticmethod
    def backward(ctx, dy: Tensor | None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return (None,) * 7
        if forward_ad._current_level >= 0:
            _refuse_transforms(dy)
        if torch.is_grad_enabled():  # not once_differentiable, which lets a dy that needs no gradient pass
            raise RuntimeError(_ONCE)
        of = ctx.needs_input_grad[:3]
        grads: tuple[Tensor | None, ...] = (None, None, None)
        if any(of):
            backward = _recorded_backward if _compiling() or _modes() else _backward_op
            grads = backward(dy, *ctx.saved_tensors, *ctx.options, of)
            grads = tuple(grad if asked else None for grad, asked in zip(grads, of, strict=True))
        return *grads, dy if ctx.needs_input_grad[3] else None, None, None, None


# Function.apply, but for what that does for torch.func, which is refused: 1.5 us
_apply = super(torch.autograd.Function, _Matmul).apply


def _differentiable(
    a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str | None, tf32: bool, save: bool
) -> tuple[Tensor, Tensor]:
    """The operator for autograd: its gradient is in every graph that holds it, whoever recorded that."""
    inputs = a, b, bias, residual
    if forward_ad._current_level >= 0 or isinstance(_transforms(), _Transform):
        _refuse_transforms(*inputs)
    needed = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
    with torch._C._AutoDispatchBelowAutograd():
        y, z = _forward_op(*inputs, activation, tf32, save or needed)
    return _apply(*inputs, activation, tf32, (y, z)) if needed else y, z


class _Once(torch.autograd.Function):
    """The backward's operator for autograd: in a graph, it has a derivative no more than in eager code."""

    @staticmethod
    def forward(ctx, *arguments: object) -> tuple[Tensor, ...]:
        with torch._C._AutoDispatchBelowAutograd():
            return _recorded_backward(*arguments)

    @staticmethod
    def backward(ctx, *_: Tensor) -> None:
        raise RuntimeError(_ONCE)


_library.impl("matmul_forward", _differentiable, "Autograd")
_library.impl("matmul_backward_recorded", _Once.apply, "Autograd")
# torch's default, for an operator that has no derivative, costs the host 0.3 us
for _name in ("matmul_forward_eager", "matmul_inference"):
    _library.impl(_name, torch.library.fallthrough_kernel, "Autograd")


_DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # what is most used is found first
_ACTIVATIONS = (None, "gelu", "gelu-tanh", "silu", "relu2")
_INTERPRETED = not isinstance(_matmul_kernel, triton.runtime.JITFunction)
_PTX = not (_INTERPRETED or torch.version.hip)
_FP32 = "tf32x3"  # where nobody asks for TF32


def _wrong_type(name: str, t: object) -> TypeError:
    got = t.dtype if isinstance(t, Tensor) else type(t)
    return TypeError(f"{name}: expected an fp32, fp16 or bf16 tensor, got {got}")


def _checked(a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None) -> None:
    """Refuse what does not fit together, in one line."""
    named = {"a": a, "b": b, "bias": bias, "residual": residual}
    for name, t in named.items():
        if t is None and name in ("bias", "residual"):
            continue
        if not isinstance(t, Tensor) or t.dtype not in _DTYPES:
            raise _wrong_type(name, t)
        if t.is_nested:
            raise TypeError(f"{name}: expected a plain tensor, got a nested one")
        if t.dtype != a.dtype:
            raise TypeError(f"{name}: expected {a.dtype}, as a has, got {t.dtype}")
        if t.device != a.device:
            raise ValueError(f"{name}: expected on {a.device}, where a is, got {t.device}")
    if not a.shape:
        raise ValueError("a: expected at least one dimension, got none")
    if b.dim() != 2 or b.shape[0] != a.shape[-1]:
        raise ValueError(f"b: expected shape [{a.shape[-1]}, N], for a of {list(a.shape)}, got {list(b.shape)}")
    shape = (*a.shape[:-1], b.shape[1])
    if bias is not None and bias.shape != shape[-1:]:
        raise ValueError(f"bias: expected shape {list(shape[-1:])}, got {list(bias.shape)}")
    if residual is not None and residual.shape != shape:
        raise ValueError(f"residual: expected shape {list(shape)}, as the result has, got {list(residual.shape)}")
    sizes = a.shape[:-1].numel(), *b.shape
    if max(sizes) > _MOST:
        raise ValueError(f"a, b: expected at most {_MOST} rows and columns, got {sizes[0]} x {sizes[1]} and "
                         f"{sizes[1]} x {sizes[2]}")  # fmt: skip
    if a.is_cpu and not _INTERPRETED:
        raise ValueError("a: expected a GPU tensor, got one on the CPU (which needs TRITON_INTERPRET=1)")


def _fit(a: Tensor, b: Tensor) -> bool:
    """Most pairs that fit together, found sooner than `_checked` does: it looks at all others."""
    return (
        type(a) is type(b) is Tensor
        and not (a.is_nested or b.is_nested)
        and a.dim() > 0
        and b.dim() == 2
        and a.dtype in _DTYPES
        and a.dtype == b.dtype
        and (a.is_cuda or _INTERPRETED)
        and a.device == b.device
        and a.shape[-1] == b.shape[0]
        and 0 < a.numel() <= _MOST
        and 0 < b.numel() <= _MOST
    )


def matmul(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    tf32: bool = False,
) -> Tensor:
    """f(a @ b + bias) + residual, computed in fp32 and rounded once. `F.linear(x, w, bias)` is `matmul(x, w.T, bias)`.

    What `torch.matmul` has and this has not: batches of b, broadcasting, fp64 and integers, double backward,
    torch.func and forward-mode AD.

    Args:
        a: [..., K], fp32, fp16 or bf16, with any strides.
        b: [K, N], of the dtype of a, as are all others; its strides are free, so a transpose costs nothing.
        bias: [N].
        residual: [..., N], of the shape of the result.
        activation: f: "gelu", "gelu-tanh", "silu", "relu2", which is relu(x)^2, or None. Of bf16, a tanh is off by
            2^-11 at most, and of fp16 and fp32 by what fp32 rounds.
        tf32: whether fp32 may be cut to TF32, which has 10 bits of mantissa, for the tensor cores. torch's own switches
            are not asked.

    Returns:
        A new contiguous tensor [..., N]. Gradients flow to a, b, bias and residual, and are bitwise the same in every
        run; that of b has its layout. Under autocast all arguments are cast to its dtype, as F.linear casts its own.

    Raises:
        TypeError: an argument is not a tensor of one of these dtypes, is nested, or has another dtype than a; or tf32
            is no bool.
        ValueError: shapes do not fit or devices differ; there are more than 2^30 rows or columns; there is no such
            activation; or a is on a CPU while Triton's interpreter (TRITON_INTERPRET=1) is off.
        RuntimeError: in a backward with create_graph=True, since there is no double backward; inside torch.func (grad,
            jvp, vmap, ...) and in forward-mode AD, which are not supported either.
    """
    if not (activation is None or isinstance(activation, str)) or activation not in _ACTIVATIONS:
        raise ValueError(f"activation: expected one of {', '.join(map(repr, _ACTIVATIONS))}, got {activation!r}")
    if not isinstance(tf32, bool):
        raise TypeError(f"tf32: expected True or False, got {type(tf32)}")
    inputs = a, b, bias, residual
    if isinstance(a, Tensor) and _autocast(a.device.type):
        dtype = torch.get_autocast_dtype(a.device.type)
        inputs = a, b, bias, residual = tuple(
            t.to(dtype) if isinstance(t, Tensor) and t.dtype in _DTYPES else t for t in inputs
        )
    recorded = _compiling() or _modes() or _tracing() or _included(_PRE_DISPATCH)
    if recorded or bias is not None or residual is not None or not _fit(a, b):
        _checked(*inputs)
    if forward_ad._current_level >= 0 or (_transforms() is not None and isinstance(_transforms(), _Transform)):
        _refuse_transforms(*inputs)
    if recorded:
        return _forward_op(*inputs, activation, tf32, False)[0]
    if _grad_enabled() and (
        a.requires_grad
        or b.requires_grad
        or (bias is not None and bias.requires_grad)
        or (residual is not None and residual.requires_grad)
    ):
        return _apply(*inputs, activation, tf32)
    return _inference_op(*inputs, activation, tf32)

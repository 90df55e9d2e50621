# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The Ridgepoint authors
"""Linear layer and cross-entropy without all logits in memory: one file to copy. It needs torch 2.11 or newer.

    logits = hidden @ weight.T                        with a soft cap c: c * tanh(logits / c)
    loss   = cross_entropy(logits, target) + z * logsumexp(logits)^2

For a mean or a sum the forward computes the gradients too: a chunk of tokens has its logits in memory once, a kernel
replaces them by their gradient, and matmuls add that to the gradients of hidden and weight. The backward scales them.
The memory of the weight's gradient, which is empty at first, holds the logits of the first chunk: a large one. Where
rows are wide, the tokens after it have their logits computed twice, in blocks of classes: small chunks would cost more.

A loss for each token needs a factor for each token, which the backward alone knows: it computes the logits again. So
does a loss in fp16, whose gradients have too small a range to be scaled later.

Source: Hsu et al., "Liger Kernel: Efficient Triton Kernels for LLM Training", 2024 (https://arxiv.org/abs/2410.10989).

Names: T tokens of width H, V classes. Row indices are int64: offsets pass 2^31. Rows of logits begin at multiples of
UNIT elements, so that accesses are 16 bytes wide.
"""

import functools
import math
import numbers

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import forward_ad

_UNIT = 8  # elements


@triton.constexpr_function
def _lowest():
    """Where a maximum begins: finite, so that -inf less it is no NaN. Each launch compares constants, not functions."""
    return -3.4028234663852886e38


# --8<-- [start:gradient]
@triton.jit
def _exp(x):
    """One instruction and a product; tl.exp takes three more, for results below the smallest normal number."""
    return tl.exp2(x * 1.4426950408889634)


@triton.jit
def _logits(x_ptr, place, padded, width, cap, CAPPED: tl.constexpr):
    """A tile; beyond the last class -inf."""
    x = tl.load(x_ptr + place, mask=place < padded, other=float("-inf")).to(tl.float32)
    if CAPPED:
        x = _cap(x, cap)
    return tl.where(place < width, x, float("-inf"))


@triton.jit
def _cap(x, cap):
    """cap * tanh(x / cap)."""
    return cap - 2 * cap / (_exp(2 * x / cap) + 1)


@triton.jit
def _gradient(x, top, scale, less, cap, CAPPED: tl.constexpr):
    """Of the classes that are not the target."""
    dx = _exp(x - top) * scale - less
    return dx * _slope(x, cap) if CAPPED else dx


@triton.jit
def _slope(x, cap):
    """Of the soft cap, from what came out of it."""
    share = tl.maximum(x / cap, -1.0)  # beyond the last class x is -inf
    return 1 - share * share


# --8<-- [end:gradient]


# --8<-- [start:rows]
# The state of a token, fp32: maximum, sum of exponentials below it, the target's logit, the first logit, and the sum
# of logits above the first.
@triton.jit
def _look(
    x_ptr, state_ptr, at, counts, T, width, padded, cap,
    FIRST: tl.constexpr, SMOOTH: tl.constexpr, CAPPED: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One pass over a row: its state, or what a further block of classes makes of it."""
    GROUPS: tl.constexpr = BLOCK // GROUP
    base = tl.load(x_ptr).to(tl.float32) if FIRST else tl.load(state_ptr + 3 * T)
    if FIRST and CAPPED:
        base = _cap(base, cap)
    base = tl.where(tl.abs(base) < float("inf"), base, 0.0)
    tops = tl.full([GROUPS], _lowest(), tl.float32)
    totals = tl.zeros([GROUPS], tl.float32)
    aboves = tl.zeros([GROUPS], tl.float32)
    lanes = tl.arange(0, BLOCK)
    for start in range(0, tl.where(counts, padded, 0), BLOCK):
        place = start + lanes
        x = _logits(x_ptr, place, padded, width, cap, CAPPED)
        groups = tl.reshape(x, [GROUPS, GROUP])
        higher = tl.maximum(tops, tl.max(groups, axis=1))
        totals = totals * _exp(tops - higher) + tl.sum(_exp(groups - higher[:, None]), axis=1)
        tops = higher
        if SMOOTH:
            aboves += tl.sum(tl.reshape(tl.where(place < width, x - base, 0.0), [GROUPS, GROUP]), axis=1)
    top = tl.max(tops)
    total, above = tl.sum(totals * _exp(tops - top)), tl.sum(aboves)
    if not FIRST:
        before = tl.load(state_ptr)
        higher = tl.maximum(top, before)
        total = total * _exp(top - higher) + tl.load(state_ptr + T) * _exp(before - higher)
        top = higher
        if SMOOTH:
            above += tl.load(state_ptr + 4 * T)
    here = counts & (at >= 0) & (at < width)
    x_target = tl.load(x_ptr + at, mask=here, other=0.0).to(tl.float32)
    if CAPPED:
        x_target = _cap(x_target, cap)
    tl.store(state_ptr, top)
    tl.store(state_ptr + T, total)
    if FIRST:
        tl.store(state_ptr + 2 * T, tl.where(counts & (here == 0), float("nan"), x_target))  # no block has it, so far
        tl.store(state_ptr + 3 * T, base)
    else:
        tl.store(state_ptr + 2 * T, x_target, mask=here)
    if SMOOTH:
        tl.store(state_ptr + 4 * T, above)
    return top, total


@triton.jit
def _write(
    x_ptr, top, scale, less, factor, at, counts, width, padded, cap, smoothing,
    CAPPED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient in place of the logits, the last tile first: of all tiles it is the likeliest to be in cache."""
    lanes = tl.arange(0, BLOCK)
    for done in range(0, padded, BLOCK):
        start = (padded - 1) // BLOCK * BLOCK - done
        place = start + lanes
        inside = place < padded
        x = _logits(x_ptr, place, tl.where(counts, padded, 0), width, cap, CAPPED)
        dx = _gradient(x, top, scale, less, cap, CAPPED)
        if (at >= start) & (at < start + BLOCK):
            less_at = (1.0 - smoothing) * factor
            dx = tl.where(place == at, dx - (less_at * _slope(x, cap) if CAPPED else less_at), dx)
        tl.store(x_ptr + place, tl.where(counts, dx, 0.0), mask=inside)


@triton.jit(do_not_specialize=["stride", "begin", "width", "V"])
def _rows_kernel(
    logits_ptr, target_ptr, state_ptr, count_ptr, dloss_ptr, stride, target_stride, dloss_stride, T, begin, width, V,
    ignore_index, smoothing, z_loss, cap,
    FIRST: tl.constexpr, LOOK: tl.constexpr, WRITE: tl.constexpr, SMOOTH: tl.constexpr, CAPPED: tl.constexpr,
    UNIT: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program for each row of a block of logits: classes begin to begin + width of V. LOOK, WRITE or both."""
    smoothing, z_loss, cap = tl.cast(smoothing, tl.float32), tl.cast(z_loss, tl.float32), tl.cast(cap, tl.float32)
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(target_ptr + row * target_stride)
    counts, known = target != ignore_index, (target >= 0) & (target < V)
    at = target - begin
    padded = tl.cdiv(width, UNIT) * UNIT
    x_ptr = logits_ptr + row * stride * UNIT
    if LOOK:
        top, total = _look(
            x_ptr, state_ptr + row, at, counts, T, width, padded, cap, FIRST, SMOOTH, CAPPED, GROUP, BLOCK
        )
    else:
        top, total = tl.load(state_ptr + row), tl.load(state_ptr + T + row)
    if WRITE:
        factor = tl.cast(1.0, tl.float32)
        if dloss_ptr is not None:
            factor = tl.load(dloss_ptr + row * dloss_stride).to(tl.float32)
        if count_ptr is not None:
            factor /= tl.load(count_ptr)
        factor = tl.where(known, factor, float("nan"))  # no such class
        total = tl.where(counts, total, 1.0)
        scale = factor * (1 + 2 * z_loss * (top + tl.log(total))) / total
        less = smoothing / V * factor if SMOOTH else 0.0
        tl.debug_barrier()  # the target's logit is read
        _write(x_ptr, top, scale, less, factor, at, counts, width, padded, cap, smoothing, CAPPED, BLOCK)


# --8<-- [end:rows]


@triton.jit
def _scale_kernel(x_ptr, dloss_ptr, size, BLOCK: tl.constexpr):
    """Multiplies by the loss's gradient, unless that is 1."""
    dloss = tl.load(dloss_ptr).to(tl.float32)
    if dloss != 1.0:
        for start in range(tl.program_id(0).to(tl.int64) * BLOCK, size, tl.num_programs(0) * BLOCK):
            place = start + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + place, mask=place < size).to(tl.float32)
            tl.store(x_ptr + place, x * dloss, mask=place < size)


# --8<-- [start:launch]
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
def _forward_launch(width: int, bits: int, device: torch.device) -> dict[str, int]:
    """By the length of a row. Wide rows: one a multiprocessor, so that the second pass finds them in L2."""
    if width <= 1024:
        return _options(device, 128, BLOCK=1024)
    if width <= 8192:
        return _options(device, 256, BLOCK=2048 * 16 // bits)
    if width <= 32768 and bits == 16:
        return _options(device, 512, BLOCK=8192)
    return _options(device, 1024, 64, BLOCK=16384 * 16 // bits)


@functools.cache
def _backward_launch(width: int, bits: int, device: torch.device) -> dict[str, int]:
    """Of a pass that writes and has nothing to find out: a block of logits."""
    return _options(device, 128 if width <= 1024 else 256, BLOCK=1024 if width <= 1024 else 2048 * 16 // bits)


def _plan(T: int, H: int, V: int) -> tuple[int, int, int, int]:
    """Tokens whose logits the weight's gradient holds, tokens of a further chunk, classes of a block; last, tokens of
    a piece whose logits are computed twice, in blocks, or 0: where memory has room for small chunks only."""
    small = H > 2048 and V > 32768 and T > 1024
    chunk = 256 if small else 1024
    first = min(T, H) // 128 * 128 if 2 * chunk < T else 0
    return first, chunk, 8192, 2048 if small else 0


# --8<-- [end:launch]


# --8<-- [start:matmuls]
# With beta=0, addmm_ reads nothing of what it writes to.
_Parts = tuple[Tensor | None, Tensor | None]  # gradients of hidden and weight


def _matrix(memory: Tensor, rows: int, columns: int) -> Tensor:
    """The front of some memory, as rows that begin at multiples of UNIT."""
    stride = -(-columns // _UNIT) * _UNIT
    return memory[: rows * stride].view(rows, stride)[:, :columns]


def _accumulate(total: Tensor, a: Tensor, b: Tensor, begin: bool) -> None:
    """total += a @ b in fp32; `begin`: total has no value yet."""
    if total.dtype == a.dtype:
        total.addmm_(a, b, beta=0 if begin else 1)
    elif total.is_cuda:
        torch.ops.aten.addmm.dtype_out(total, a, b, torch.float32, beta=0 if begin else 1, out=total)
    else:
        total.addmm_(a.float(), b.float(), beta=0 if begin else 1)


class _Rows:
    """Some tokens, and what the kernel of rows needs beside their logits."""

    def __init__(self, x: Tensor, target: Tensor, state: Tensor, count: Tensor | None, dloss: Tensor | None, V: int,
                 options: tuple):  # fmt: skip
        self.x, self.target, self.state, self.count, self.dloss, self.V = x, target, state, count, dloss, V
        self.options = options

    def part(self, first: int, last: int) -> "_Rows":
        dloss = self.dloss[first:last] if self.dloss is not None and self.dloss.dim() else self.dloss
        rows = slice(first, last)
        return _Rows(self.x[rows], self.target[rows], self.state[:, rows], self.count, dloss, self.V, self.options)

    def run(self, logits: Tensor, begin: int = 0, look: bool = False, write: bool = False) -> None:
        """The state of these tokens, or the gradient in place of their logits, for classes from `begin` on."""
        ignore_index, smoothing, z_loss, cap, _ = self.options
        width, x, dloss = logits.shape[1], logits, self.dloss
        launch = (_forward_launch if look else _backward_launch)(width, 8 * x.element_size(), x.device)
        with torch.cuda.device_of(x):  # triton launches on the current device
            _rows_kernel[(x.shape[0],)](
                x, self.target, self.state, self.count, dloss, x.stride(0) // _UNIT, self.target.stride(0),
                dloss.stride(0) if dloss is not None and dloss.dim() else 0, self.state.stride(0), begin, width,
                self.V, ignore_index, smoothing, z_loss, cap, FIRST=begin == 0, LOOK=look, WRITE=write,
                SMOOTH=smoothing != 0, CAPPED=cap != 0, UNIT=_UNIT, GROUP=16 // x.element_size(), **launch,
            )  # fmt: skip


def _in_chunks(rows: _Rows, w: Tensor, start: int, chunk: int, memory: Tensor, grads: _Parts, write: bool) -> None:
    """All classes of some tokens at a time. The weight's gradient is rounded once a chunk."""
    dx, dw = grads
    for begin in range(start, rows.x.shape[0], chunk):
        part = rows.part(begin, begin + chunk)
        logits = _matrix(memory, part.x.shape[0], w.shape[0])
        logits.addmm_(part.x, w.t(), beta=0)
        part.run(logits, look=True, write=write)
        if dx is not None:
            dx[begin : begin + chunk].addmm_(logits, w, beta=0)
        if dw is not None:
            dw.addmm_(logits.t(), part.x, beta=1 if begin else 0)


def _blocks(V: int, block: int) -> list[tuple[int, int]]:
    """The short one comes first."""
    stops = [V - done for done in range(0, V, block)][::-1]
    return list(zip([0, *stops[:-1]], stops, strict=True))


def _in_blocks(
    rows: _Rows, w: Tensor, block: int, memory: Tensor, grads: _Parts, begin: bool, kept: list[Tensor] | None = None
) -> None:
    """All tokens of some classes at a time: the weight's gradient is rounded once, that of hidden is added up in fp32.

    Args:
        memory: for the logits of a block, where they are not `kept`.
        begin: the weight's gradient has no value yet.
    """
    total, dw = grads
    for index, (first, last) in enumerate(_blocks(w.shape[0], block)):
        logits = kept[index] if kept else _matrix(memory, rows.x.shape[0], last - first)
        if not kept:
            logits.addmm_(rows.x, w[first:last].t(), beta=0)
        rows.run(logits, first, write=True)
        if total is not None:
            _accumulate(total, logits, w[first:last], first == 0)
        if dw is not None:
            dw[first:last].addmm_(logits.t(), rows.x, beta=0 if begin else 1)


def _lent(rows: _Rows, w: Tensor, block: int, memory: Tensor, grads: _Parts) -> None:
    """The first tokens, at most H: their logits take no more memory than the weight's gradient, and are in its place.

    A block of logits is where the gradient of the next block of classes will be, the last one in `memory`: it is used
    up when that gradient is written.
    """
    dx, dw = grads
    assert dw is not None
    (T, H), blocks = rows.x.shape, _blocks(w.shape[0], block)
    kept = [_matrix(dw[last:].view(-1) if last < w.shape[0] else memory, T, last - first) for first, last in blocks]
    for logits, (first, last) in zip(kept, blocks, strict=True):
        logits.addmm_(rows.x, w[first:last].t(), beta=0)
        rows.run(logits, first, look=True)
    total = dx
    if dx is not None:  # the rows of later tokens are free as well: place for fp32
        half = dx.dtype != torch.float32
        fits = half and dx.shape[0] >= 2 * T
        total = dx.view(-1)[: 2 * T * H].view(torch.float32).view(T, H) if fits else dx[:T]
        total = torch.empty(T, H, dtype=torch.float32, device=dx.device) if half and not fits else total
    _in_blocks(rows, w, block, memory, (total, dw), True, kept)
    if dx is not None and total is not None and total.dtype != dx.dtype:
        dx[:T].copy_(memory[: T * H].view(T, H).copy_(total))


# --8<-- [end:matmuls]


# Beyond it indices of 32 bits have no room for a tile, or a step over tokens.
_MOST_ROWS = _MOST_COLUMNS = 2**30
_REDUCTIONS = ("none", "mean", "sum")


def _ahead(dtype: torch.dtype, reduction: str) -> bool:
    """Whether the forward computes the gradients: for one factor, in a dtype with the range of fp32."""
    return reduction != "none" and dtype != torch.float16


def _count(target: Tensor, options: tuple) -> Tensor | None:
    """How many tokens count, fp32, for a mean."""
    return (target != options[0]).sum().to(torch.float32) if options[-1] == "mean" else None


def _loss(state: Tensor, target: Tensor, count: Tensor | None, V: int, options: tuple, dtype: torch.dtype) -> Tensor:
    ignore_index, smoothing, z_loss, _, reduction = options
    top, total, x_target, base, above = state
    log = total.log()
    loss = top - x_target + log
    if smoothing:
        loss = (1 - smoothing) * loss + smoothing * (top - base + log - above / V)
    if z_loss:
        loss = loss + z_loss * (top + log).square()
    loss = torch.where(target != ignore_index, loss, 0.0)
    if reduction != "none":
        loss = loss.sum() if count is None else loss.sum() / count
    return loss.to(dtype)


def _sweep(rows: _Rows, w: Tensor, grads: _Parts) -> None:
    """State and gradients of all tokens."""
    (T, H), V = rows.x.shape, w.shape[0]
    first, chunk, block, piece = _plan(T, H, V)
    first = 0 if grads[1] is None else min(first, T, H)
    chunk, block = min(chunk, T), min(block, V)
    piece = piece if 0 < first < T else 0
    padded = -(-V // _UNIT) * _UNIT
    size = max(chunk * padded if first < T and not piece else 0, first * (-(-block // _UNIT) * _UNIT), first * H)
    memory = torch.empty(size, dtype=w.dtype, device=w.device)
    if first:
        _lent(rows.part(0, first), w, block, memory, grads)
    if piece:
        del memory
        _again(rows, w, grads, first, piece, block, known=False)
    else:
        _in_chunks(rows, w, first, chunk, memory, grads, write=grads != (None, None))


def _again(
    rows: _Rows, w: Tensor, grads: _Parts, start: int = 0, tokens: int = 8192, block: int = 4096, known: bool = True
) -> None:
    """Gradients from logits that are computed again, some tokens at a time; once before, if their state is unknown."""
    (T, H), V = rows.x.shape, w.shape[0]
    dx, dw = grads
    tokens, block = min(T, tokens), min(block, -(-V // _UNIT) * _UNIT)
    memory = torch.empty(tokens * (-(-block // _UNIT) * _UNIT), dtype=w.dtype, device=w.device)
    total = None if dx is None else torch.empty(tokens, H, dtype=torch.float32, device=w.device)
    for begin in range(start, T, tokens):
        part = rows.part(begin, begin + tokens)
        count = part.x.shape[0]
        for first, last in () if known else _blocks(V, block):
            logits = _matrix(memory, count, last - first)
            logits.addmm_(part.x, w[first:last].t(), beta=0)
            part.run(logits, first, look=True)
        _in_blocks(part, w, block, memory, (None if total is None else total[:count], dw), begin == 0)
        if dx is not None and total is not None:
            dx[begin : begin + count].copy_(total[:count])


def _flat(hidden: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows; those that cuBLAS cannot count in 32 bits, copied."""
    x = hidden.reshape(target.numel(), hidden.shape[-1])
    x, w = (t if max(t.stride()) < 2**31 else t.contiguous() for t in (x, weight))
    return x, w, target.reshape(-1)


def _new(hidden: Tensor, weight: Tensor, wanted: tuple[bool, bool]) -> tuple[Tensor, Tensor]:
    """Memory for the gradients that are wanted, dense; of the others, empty tensors."""
    shapes = (t.shape if want else (0,) for t, want in zip((hidden, weight), wanted, strict=True))
    of_hidden, of_weight = (hidden.new_empty(shape) for shape in shapes)
    return of_hidden, of_weight


def _parts(dhidden: Tensor, dweight: Tensor, x: Tensor, wanted: tuple[bool, bool]) -> _Parts:
    return dhidden.view(x.shape) if wanted[0] else None, dweight if wanted[1] else None


def _forward_fake(
    hidden: Tensor, weight: Tensor, target: Tensor, ignore_index: int, smoothing: float, z_loss: float, cap: float,
    reduction: str, dtype: torch.dtype, of_hidden: bool, of_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    loss = hidden.new_empty(target.shape if reduction == "none" else (), dtype=dtype)
    state = hidden.new_empty((5, target.numel()), dtype=torch.float32)
    return loss, state, *_new(hidden, weight, (of_hidden, of_weight))


def _forward(
    hidden: Tensor, weight: Tensor, target: Tensor, ignore_index: int, smoothing: float, z_loss: float, cap: float,
    reduction: str, dtype: torch.dtype, of_hidden: bool, of_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The loss, the state of all tokens, and the gradients that are wanted, for an incoming gradient of 1."""
    options, wanted = (ignore_index, smoothing, z_loss, cap, reduction), (of_hidden, of_weight)
    with torch._C._AutoDispatchBelowAutograd():
        x, w, flat = _flat(hidden, weight, target)
        state = torch.zeros(5, flat.shape[0], dtype=torch.float32, device=x.device)
        count = _count(flat, options)
        grads = _new(hidden, weight, wanted)
        if flat.numel() == 0:
            grads[1].zero_()
        else:
            rows = _Rows(x, flat, state, count, None, weight.shape[0], options)
            _sweep(rows, w, _parts(*grads, x, wanted))
        loss = _loss(state, flat, count, weight.shape[0], options, dtype)
        return loss.view(target.shape) if reduction == "none" else loss, state, *grads


def _backward_fake(
    dloss: Tensor, hidden: Tensor, weight: Tensor, target: Tensor, state: Tensor, ignore_index: int, smoothing: float,
    z_loss: float, cap: float, reduction: str, of_hidden: bool, of_weight: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _new(hidden, weight, (of_hidden, of_weight))


def _backward(
    dloss: Tensor, hidden: Tensor, weight: Tensor, target: Tensor, state: Tensor, ignore_index: int, smoothing: float,
    z_loss: float, cap: float, reduction: str, of_hidden: bool, of_weight: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients, computed again: to the bit those of the forward, where it computes them."""
    options, wanted = (ignore_index, smoothing, z_loss, cap, reduction), (of_hidden, of_weight)
    with torch._C._AutoDispatchBelowAutograd():
        grads = _new(hidden, weight, wanted)
        x, w, flat = _flat(hidden, weight, target)
        if flat.numel() == 0:
            grads[1].zero_()
        elif _ahead(hidden.dtype, reduction):
            rows = _Rows(x, flat, torch.empty_like(state), _count(flat, options), None, weight.shape[0], options)
            _sweep(rows, w, _parts(*grads, x, wanted))
            _scale(*grads, dloss)
        else:
            dloss = dloss.reshape(-1) if reduction == "none" else dloss
            rows = _Rows(x, flat, state, _count(flat, options), dloss, weight.shape[0], options)
            _again(rows, w, _parts(*grads, x, wanted))
    return grads


def _scale(dhidden: Tensor, dweight: Tensor, dloss: Tensor) -> None:
    """In place."""
    for t in (dhidden, dweight):
        if t.numel():
            programs = min(-(-t.numel() // 4096), 8 * _device(t.device)[0])
            with torch.cuda.device_of(t):
                _scale_kernel[(programs,)](t, dloss, t.numel(), **_options(t.device, 256, BLOCK=4096))


def _factor(dloss: Tensor) -> Tensor:
    return dloss.clone()


# define and impl cost the host less per call than custom_op; fake tensors, torch.compile and opcheck work as well
_namespace = __name__.replace(".", "_")  # another copy of this file, in another package, has another
_library = torch.library.Library(_namespace, "FRAGMENT")
_OPTIONS = "int ignore_index, float smoothing, float z_loss, float cap, str reduction"
_GIVEN = f"Tensor hidden, Tensor weight, Tensor target, {_OPTIONS}, ScalarType dtype, bool of_hidden, bool of_weight"
_SAVED = f"Tensor dloss, Tensor hidden, Tensor weight, Tensor target, Tensor state, {_OPTIONS}"
_BACKWARD = f"({_SAVED}, bool of_hidden, bool of_weight) -> (Tensor, Tensor)"
for _name, _schema, _function, _meta in (
    ("linear_cross_entropy_forward", f"({_GIVEN}) -> (Tensor, Tensor, Tensor, Tensor)", _forward, _forward_fake),
    ("linear_cross_entropy_backward", _BACKWARD, _backward, _backward_fake),
    ("linear_cross_entropy_backward_recorded", _BACKWARD, _backward, _backward_fake),  # is not differentiated
    ("linear_cross_entropy_factor_recorded", "(Tensor dloss) -> Tensor", _factor, torch.empty_like),  # nor this
    ("linear_cross_entropy_scale", "(Tensor(a!) dhidden, Tensor(b!) dweight, Tensor dloss) -> ()", _scale,
     lambda *_: None),
):  # fmt: skip
    _library.define(_name + _schema)
    for _key in ("CUDA", "CPU"):  # AMD's GPUs are "CUDA" to torch; the CPU is for triton's interpreter
        _library.impl(_name, torch._disable_dynamo(_function), _key)  # called from a graph break, it is not traced
    torch.library.register_fake(f"{_namespace}::{_name}", _meta, lib=_library)
_forward_op = getattr(torch.ops, _namespace).linear_cross_entropy_forward.default
_backward_op = getattr(torch.ops, _namespace).linear_cross_entropy_backward.default
_recorded_backward = getattr(torch.ops, _namespace).linear_cross_entropy_backward_recorded.default
_recorded_factor = getattr(torch.ops, _namespace).linear_cross_entropy_factor_recorded.default
_scale_op = getattr(torch.ops, _namespace).linear_cross_entropy_scale.default


# of the innermost call of torch.func, None outside; compiled code is guarded by it
_transforms, _Transform = torch._C._functorch.peek_interpreter_stack, torch._C._functorch.CInterpreter
_compiling, _modes = torch.compiler.is_dynamo_compiling, torch._C._len_torch_dispatch_stack
_autocast = torch.is_autocast_enabled


def _refuse_transforms(*tensors: Tensor | None) -> None:
    """Inside torch.func, and for a tensor with a tangent, the operator would return a result without derivatives."""
    unseen = isinstance(_transforms(), _Transform) or torch.compiler.is_compiling()  # there tangents do not show
    if unseen or any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise RuntimeError("linear_cross_entropy: expected a call outside torch.func (grad, jvp, vmap, ...) and "
                           "forward-mode AD, got one inside: this kernel has a plain backward only")  # fmt: skip


# modes that make a graph of what they see; others, as for counting or logging, change nothing
_MODES = torch._C._TorchDispatchModeKey
_RECORDERS, _mode = (_MODES.PROXY, _MODES.FUNCTIONAL, _MODES.FAKE), torch._C._get_dispatch_mode


def _recorded() -> bool:
    return _modes() > 0 and any(_mode(key) is not None for key in _RECORDERS)


# by is_grads_batched, by torch.func.vmap
_BATCHED = torch._C._functorch.is_legacy_batchedtensor, torch._C._functorch.is_batchedtensor


_ONCE = (
    "linear_cross_entropy: expected a backward without create_graph=True, got one with: it would lose the second "
    "derivative, which this kernel does not have"
)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, hidden: Tensor, weight: Tensor, target: Tensor, options: tuple, ahead: bool, computed: tuple[Tensor, ...]
    ) -> Tensor:  # fmt: skip
        loss, *saved = computed
        ctx.set_materialize_grads(False)
        ctx.options, ctx.ahead = options, ahead
        ctx.save_for_backward(hidden, weight, target, *saved)
        return loss

    @staticmethod
    def backward(ctx, dloss: Tensor | None) -> tuple[Tensor | None, ...]:
        if dloss is None:
            return (None,) * 6
        if forward_ad._current_level >= 0:
            _refuse_transforms(dloss)
        if torch.is_grad_enabled():  # not once_differentiable, which lets a dloss that needs no gradient pass
            raise RuntimeError(_ONCE)
        hidden, weight, target, state, *ready = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:2]
        recorded = _compiling() or _recorded()  # a graph would copy a gradient before it let an op write into it
        if not ctx.ahead or any(is_batched(dloss) for is_batched in _BATCHED):  # the second: several gradients
            backward = _recorded_backward if recorded else _backward_op
            grads = backward(dloss, hidden, weight, target, state, *ctx.options, *wanted)
        elif recorded:
            factor = _recorded_factor(dloss).to(torch.float32)
            grads = tuple((t.to(torch.float32) * factor).to(t.dtype) for t in ready)
        else:
            ctx.ahead = False  # the memory is the caller's from now on: a second backward takes its own
            grads = tuple(t.data for t in ready)  # with a version of its own: what the caller does to it is not seen
            _scale_op(*grads, dloss)
        return *(t if want else None for t, want in zip(grads, wanted, strict=True)), None, None, None, None


# Function.apply, but for what that does for torch.func, which is refused: 1.5 us
_apply = super(torch.autograd.Function, _LinearCrossEntropy).apply


def _differentiable(
    hidden: Tensor, weight: Tensor, target: Tensor, ignore_index: int, smoothing: float, z_loss: float, cap: float,
    reduction: str, dtype: torch.dtype, of_hidden: bool, of_weight: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The operator for autograd: its gradient is in every graph that holds it, whoever recorded that."""
    if forward_ad._current_level >= 0 or isinstance(_transforms(), _Transform):
        _refuse_transforms(hidden, weight)
    options, ahead = (ignore_index, smoothing, z_loss, cap, reduction), _ahead(hidden.dtype, reduction)
    needed = tuple(torch.is_grad_enabled() and t.requires_grad for t in (hidden, weight))
    wanted = of_hidden or (ahead and needed[0]), of_weight or (ahead and needed[1])
    with torch._C._AutoDispatchBelowAutograd():
        loss, *saved = computed = _forward_op(hidden, weight, target, *options, dtype, *wanted)
    return _apply(hidden, weight, target, options, ahead, computed) if any(needed) else loss, *saved


class _Once(torch.autograd.Function):
    """An operator of the backward for autograd: in a graph, it has a derivative no more than in eager code."""

    @staticmethod
    def forward(ctx, operator, *arguments: object) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*arguments)

    @staticmethod
    def backward(ctx, *_: Tensor) -> None:
        raise RuntimeError(_ONCE)


_library.impl("linear_cross_entropy_forward", _differentiable, "Autograd")
for _operator in (_recorded_backward, _recorded_factor):
    _library.impl(_operator.name().split("::")[1], functools.partial(_Once.apply, _operator), "Autograd")


_DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # what is most used is found first
_INTEGER, _NUMBER = (int, numbers.Integral), (float, numbers.Real)  # NumPy's, too; the first is found sooner
_INTERPRETED = not isinstance(_rows_kernel, triton.runtime.JITFunction)


def _wrong_type(name: str, t: object) -> TypeError:
    got = t.dtype if isinstance(t, Tensor) else type(t)
    return TypeError(f"{name}: expected an fp32, fp16 or bf16 tensor, got {got}")


def _check_tensors(hidden: object, weight: object, target: object) -> None:
    for name, t in (("hidden", hidden), ("weight", weight)):
        if not isinstance(t, Tensor) or t.dtype not in _DTYPES:
            raise _wrong_type(name, t)
    if hidden.is_cpu and not _INTERPRETED:
        raise ValueError("hidden: expected a GPU tensor, got one on the CPU (which needs TRITON_INTERPRET=1)")
    if not isinstance(target, Tensor) or target.dtype != torch.int64:
        got = target.dtype if isinstance(target, Tensor) else type(target)
        raise TypeError(f"target: expected an int64 tensor of classes (not of probabilities), got {got}")
    assert isinstance(hidden, Tensor) and isinstance(weight, Tensor)
    for name, t in (("hidden", hidden), ("weight", weight), ("target", target)):
        if t.is_nested:
            raise TypeError(f"{name}: expected a plain tensor, got a nested one; the rows of a jagged one are in its "
                            "values()")  # fmt: skip
    if hidden.dim() == 0:
        raise ValueError("hidden: expected at least one dimension, got none")
    if weight.dim() != 2 or weight.shape[1] != hidden.shape[-1] or not weight.shape[0]:
        raise ValueError(f"weight: expected shape [classes, {hidden.shape[-1]}], with one class or more, got "
                         f"{list(weight.shape)}")  # fmt: skip
    if target.shape != hidden.shape[:-1]:
        raise ValueError(f"target: expected shape {list(hidden.shape[:-1])}, got {list(target.shape)}")
    for name, t in (("weight", weight), ("target", target)):
        if t.device != hidden.device:
            raise ValueError(f"{name}: expected on {hidden.device}, where hidden is, got {t.device}")
    if target.numel() > _MOST_ROWS or weight.shape[0] > _MOST_COLUMNS:
        raise ValueError(f"weight: expected at most {_MOST_COLUMNS} classes, and {_MOST_ROWS} tokens, got "
                         f"{weight.shape[0]} and {target.numel()}")  # fmt: skip


def _check_options(ignore_index: object, label_smoothing: object, z_loss: object, softcap: object, reduction: object):
    if not isinstance(ignore_index, _INTEGER):
        raise TypeError(f"ignore_index: expected an integer, got {type(ignore_index)}")
    if not -(2**63) <= ignore_index < 2**63:  # type: ignore[operator]
        raise ValueError(f"ignore_index: expected 64 bits, got {ignore_index}")
    for name, value, most in (
        ("label_smoothing", label_smoothing, 1), ("z_loss", z_loss, math.inf), ("softcap", softcap, math.inf)
    ):  # fmt: skip
        if not isinstance(value, _NUMBER):
            raise TypeError(f"{name}: expected a number, got {type(value)}")
        if not 0 <= value <= most or value == math.inf:  # type: ignore[operator]
            raise ValueError(f"{name}: expected from 0 to {'1' if most == 1 else 'any finite number'}, got {value}")
    if not isinstance(reduction, str) or reduction not in _REDUCTIONS:
        raise ValueError(f"reduction: expected one of {', '.join(map(repr, _REDUCTIONS))}, got {reduction!r}")


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Cross-entropy of the logits hidden @ weight.T, which never exist all at once.

    The function, and the dtypes, of F.cross_entropy(F.linear(hidden, weight), target): logits are rounded to the dtype
    of hidden, the loss is computed in fp32. A mean or a sum in bf16 or fp32 has its gradients computed by the forward;
    the weight's is then rounded once for each chunk of tokens. Else the backward computes the logits again.

    Args:
        hidden: [..., H], fp32, fp16 or bf16, with any strides.
        weight: [V, H], of the same dtype (under autocast, both are cast to autocast's).
        target: [...], int64, with classes from 0 to V - 1 or ignore_index. Nobody looks at them before the kernel
            does: the loss and the gradient of a token with another target are NaN.
        ignore_index: tokens with this target count nowhere: no loss, a gradient of zero.
        label_smoothing: from 0 to 1, how much of the target's probability is spread over all classes.
        z_loss: weight of the square of the logarithm of the sum of exponentials, which is added to a token's loss.
        softcap: c, for logits c * tanh(logits / c); 0 for none.
        reduction: "mean" (over the tokens that count: NaN if none does), "sum" or "none".

    Returns:
        The loss: of the shape of target for "none", else of shape []. Gradients flow to hidden and weight.

    Raises:
        TypeError: hidden or weight is not a tensor of one of these dtypes, their dtypes differ, or target is not one
            of int64; one of them is nested; an option is no number.
        ValueError: a shape, a device or an option other than these; more than 2^30 tokens or classes; or tensors on a
            CPU while Triton's interpreter (TRITON_INTERPRET=1) is off.
        RuntimeError: in a backward with create_graph=True, since there is no double backward; inside torch.func (grad,
            jvp, vmap, ...) and in forward-mode AD, which are not supported either.

    Source: Hsu et al., "Liger Kernel: Efficient Triton Kernels for LLM Training", 2024
        (https://arxiv.org/abs/2410.10989).
    """
    _check_tensors(hidden, weight, target)
    _check_options(ignore_index, label_smoothing, z_loss, softcap, reduction)
    if forward_ad._current_level >= 0 or (_transforms() is not None and isinstance(_transforms(), _Transform)):
        _refuse_transforms(hidden, weight)
    dtype = hidden.dtype
    if _autocast(hidden.device.type):
        of_matmuls, dtype = torch.get_autocast_dtype(hidden.device.type), torch.float32
        hidden, weight = hidden.to(of_matmuls), weight.to(of_matmuls)
    if weight.dtype != hidden.dtype:
        raise TypeError(f"weight: expected {hidden.dtype}, the dtype of hidden, got {weight.dtype}")
    options = (ignore_index, label_smoothing, z_loss, softcap, reduction)
    return _forward_op(hidden, weight, target, *options, dtype, False, False)[0]

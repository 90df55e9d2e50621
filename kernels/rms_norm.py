# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The Ridgepoint authors
"""RMSNorm in Triton, forward and backward: one file to copy. It needs torch >= 2.11 and its triton.

    y = x * rstd * weight,  rstd = 1 / sqrt(mean(x^2) + eps)  over the last dimension

Source: Zhang & Sennrich, "Root Mean Square Layer Normalization", 2019 (https://arxiv.org/abs/1910.07467).

Sizes in the comments: M rows (all leading dimensions together), N columns.
"""
# --8<-- [start:imports]
import functools

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
# --8<-- [end:imports]


# --8<-- [start:forward]
@triton.jit
def _forward_kernel(
    x_ptr, weight_ptr, y_ptr, rstd_ptr, x_stride, M, N, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """ROWS whole rows, held in registers. Reads MN, writes MN."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)  # int64: offsets pass 2^31
    cols = tl.arange(0, BLOCK)
    inside = (rows < M)[:, None] & (cols < N)[None, :]
    x = tl.load(x_ptr + rows[:, None] * x_stride + cols[None, :], mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=1) / N + tl.cast(eps, tl.float32))  # Inductor may hand eps in as fp64
    y = x * rstd[:, None] * weight[None, :]
    tl.store(y_ptr + rows[:, None] * N + cols[None, :], y, mask=inside)
    tl.store(rstd_ptr + rows, rstd, mask=rows < M)
# --8<-- [end:forward]


# --8<-- [start:forward-wide]
@triton.jit
def _forward_wide_kernel(x_ptr, weight_ptr, y_ptr, rstd_ptr, x_stride, N, eps, BLOCK: tl.constexpr):
    """One row, too wide for registers: the second look at it comes from L2."""
    row = tl.program_id(0).to(tl.int64)
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_stride + cols, mask=cols < N, other=0.0, eviction_policy="evict_last")
        x = x.to(tl.float32)
        squares += x * x
    rstd = tl.rsqrt(tl.sum(squares) / N + tl.cast(eps, tl.float32))
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_stride + cols, mask=cols < N, other=0.0, eviction_policy="evict_first")
        weight = tl.load(weight_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)
        tl.store(y_ptr + row * N + cols, x.to(tl.float32) * rstd * weight, mask=cols < N)
    tl.store(rstd_ptr + row, rstd)
# --8<-- [end:forward-wide]


# With x_hat = x * rstd and g = dy * weight:
#     dx      = rstd * (g - x_hat * mean(g * x_hat))    mean over the row
#     dweight = sum(dy * x_hat)                         sum over all rows
# Each program walks over its own rows and keeps its share of dweight in registers. The shares are added
# by a second kernel in a fixed order, so dweight is bitwise the same in every run.


# --8<-- [start:backward]
@triton.jit
def _backward_kernel(
    dy_ptr, x_ptr, weight_ptr, rstd_ptr, mean_ptr, dx_ptr, share_ptr, dy_stride, x_stride, M, N,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, WHOLE: tl.constexpr,
):
    """ROWS rows at a time, of which this program has BLOCK columns: the WHOLE row, or else the mean is given."""
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    weight = tl.load(weight_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)
    dweight = tl.zeros([ROWS, BLOCK], tl.float32)
    first = tl.program_id(0).to(tl.int64) * ROWS
    for start in tl.range(first, M, tl.num_programs(0) * ROWS, num_stages=STAGES):
        rows = start + tl.arange(0, ROWS)
        inside = (rows < M)[:, None] & (cols < N)[None, :]
        x = tl.load(x_ptr + rows[:, None] * x_stride + cols[None, :], mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + rows[:, None] * dy_stride + cols[None, :], mask=inside, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + rows, mask=rows < M, other=0.0)
        x_hat = x * rstd[:, None]
        g = dy * weight[None, :]
        if WHOLE:
            mean = tl.sum(g * x_hat, axis=1) / N
        else:
            mean = tl.load(mean_ptr + rows, mask=rows < M, other=0.0)
        dx = (g - x_hat * mean[:, None]) * rstd[:, None]
        tl.store(dx_ptr + rows[:, None] * N + cols[None, :], dx, mask=inside)
        dweight += dy * x_hat
    tl.store(share_ptr + tl.program_id(0).to(tl.int64) * N + cols, tl.sum(dweight, axis=0), mask=cols < N)
# --8<-- [end:backward]


# --8<-- [start:backward-wide]
@triton.jit
def _load(ptr, row, stride, cols, N, POLICY: tl.constexpr):
    return tl.load(ptr + row * stride + cols, mask=cols < N, other=0.0, eviction_policy=POLICY).to(tl.float32)


@triton.jit
def _backward_wide_kernel(
    dy_ptr, x_ptr, weight_ptr, rstd_ptr, dx_ptr, share_ptr, dy_stride, x_stride, M, N,
    TILES: tl.constexpr, BLOCK: tl.constexpr,
):
    """The registers have room for dweight only: each row is looked at twice, tile by tile, then from cache."""
    dweight = (tl.zeros([BLOCK], tl.float32),) * TILES
    # without disable_licm all tiles' masks and addresses are kept in registers over the loop: it spills
    for row in tl.range(tl.program_id(0).to(tl.int64), M, tl.num_programs(0), disable_licm=True):
        rstd = tl.load(rstd_ptr + row)
        products = tl.zeros([BLOCK // 8], tl.float32)
        total = ()
        for tile in tl.static_range(TILES):
            cols = tile * BLOCK + tl.arange(0, BLOCK)
            dy = _load(dy_ptr, row, dy_stride, cols, N, "evict_last")
            dy_x_hat = dy * (_load(x_ptr, row, x_stride, cols, N, "evict_last") * rstd)
            total = total + (dweight[tile] + dy_x_hat,)
            product = dy_x_hat * _load(weight_ptr, 0, 0, cols, N, "evict_last")
            products += tl.sum(tl.reshape(product, [BLOCK // 8, 8]), axis=1)  # eight that one thread loaded
        dweight = total
        mean = tl.sum(products) / N
        for tile in tl.static_range(TILES):
            cols = tile * BLOCK + tl.arange(0, BLOCK)
            g = _load(dy_ptr, row, dy_stride, cols, N, "evict_first") * _load(weight_ptr, 0, 0, cols, N, "")
            x_hat = _load(x_ptr, row, x_stride, cols, N, "evict_first") * rstd
            tl.store(dx_ptr + row * N + cols, (g - x_hat * mean) * rstd, mask=cols < N)
    for tile in tl.static_range(TILES):
        cols = tile * BLOCK + tl.arange(0, BLOCK)
        tl.store(share_ptr + tl.program_id(0).to(tl.int64) * N + cols, dweight[tile], mask=cols < N)
# --8<-- [end:backward-wide]


# --8<-- [start:sums]
@triton.jit
def _row_mean_kernel(
    dy_ptr, x_ptr, weight_ptr, rstd_ptr, mean_ptr, dy_stride, x_stride, N, BLOCK: tl.constexpr
):
    """The mean of g * x_hat of one row of any width."""
    row = tl.program_id(0).to(tl.int64)
    products = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_stride + cols, mask=cols < N, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * dy_stride + cols, mask=cols < N, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)
        products += dy * weight * x
    tl.store(mean_ptr + row, tl.sum(products) * tl.load(rstd_ptr + row) / N)


@triton.jit
def _sum_shares_kernel(share_ptr, dweight_ptr, P, N, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Adds the P programs' shares of dweight."""
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(0, P, ROWS):
        rows = start + tl.arange(0, ROWS)
        inside = (rows < P)[:, None] & (cols < N)[None, :]
        total += tl.load(share_ptr + rows[:, None].to(tl.int64) * N + cols[None, :], mask=inside, other=0.0)
    tl.store(dweight_ptr + cols, tl.sum(total, axis=0), mask=cols < N)
# --8<-- [end:sums]


# --8<-- [start:launch]
_REGISTER_COLUMNS = 32768  # the widest row that the forward holds in registers
_ONE_LOOK_COLUMNS = 8192  # the same for the backward, which keeps dweight there as well
_TWO_LOOK_COLUMNS = 32768  # the widest whose dweight alone fits


@functools.cache
def _processors_and_warp_size(device: torch.device) -> tuple[int, int]:
    if device.type == "cpu":  # the interpreter
        return 2, 32
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, properties.warp_size


def _forward_launch(N: int) -> dict[str, int]:
    """Tile and threads by row length: 32 elements a thread, in accesses of 16 bytes."""
    block = triton.next_power_of_2(N)
    rows = max(1, 4096 // block)
    return {"ROWS": rows, "BLOCK": block, "threads": min(1024, max(128, rows * block // 32))}


def _backward_launch(N: int) -> dict[str, int]:
    """Tile, threads, loads in flight and programs a multiprocessor by row length."""
    if N <= 8192:
        block = triton.next_power_of_2(N)
        rows = max(1, 4096 // block)
        return {"ROWS": rows, "BLOCK": block, "STAGES": 2, "threads": max(128, block // 16), "programs": 2}
    if N <= _TWO_LOOK_COLUMNS:
        return {"TILES": triton.cdiv(N, 4096), "BLOCK": 4096, "threads": 512, "programs": 1}
    return {"ROWS": 1, "BLOCK": 4096, "STAGES": 2, "threads": 256, "programs": 2}
# --8<-- [end:launch]


# --8<-- [start:op]
def _rows(t: Tensor) -> Tensor:
    """As M x N with unit column stride: a view where the strides allow one."""
    rows = t.reshape(-1, t.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _forward(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    y, rstd = _forward_fake(x, weight, eps, dtype)
    if x.numel() == 0:
        return y, rstd
    x, weight = _rows(x), weight.contiguous()
    M, N = x.shape
    _, warp_size = _processors_and_warp_size(x.device)
    with torch.cuda.device_of(x):  # triton launches on the current device
        if N <= _REGISTER_COLUMNS:
            launch = _forward_launch(N)
            warps = launch.pop("threads") // warp_size
            _forward_kernel[triton.cdiv(M, launch["ROWS"]),](
                x, weight, y, rstd, x.stride(0), M, N, eps, **launch, num_warps=warps
            )
        else:
            _forward_wide_kernel[M,](
                x, weight, y, rstd, x.stride(0), N, eps, BLOCK=8192, num_warps=512 // warp_size
            )
    return y, rstd


def _backward(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    dx, dweight = _backward_fake(dy, x, weight, rstd)
    if x.numel() == 0:
        return dx, dweight.zero_()
    dy, x, weight = _rows(dy), _rows(x), weight.contiguous()
    M, N = x.shape
    processors, warp_size = _processors_and_warp_size(x.device)
    launch = _backward_launch(N)
    warps = launch.pop("threads") // warp_size
    programs = min(processors * launch.pop("programs"), triton.cdiv(M, launch.get("ROWS", 1)))
    shares = torch.empty(programs, N, dtype=torch.float32, device=x.device)
    with torch.cuda.device_of(x):
        if _ONE_LOOK_COLUMNS < N <= _TWO_LOOK_COLUMNS:
            _backward_wide_kernel[programs,](
                dy, x, weight, rstd, dx, shares, dy.stride(0), x.stride(0), M, N, **launch, num_warps=warps
            )
        else:
            whole, mean = N <= _ONE_LOOK_COLUMNS, None
            if not whole:
                mean = torch.empty_like(rstd)
                _row_mean_kernel[M,](
                    dy, x, weight, rstd, mean, dy.stride(0), x.stride(0), N, BLOCK=8192, num_warps=512 // warp_size
                )
            _backward_kernel[programs, triton.cdiv(N, launch["BLOCK"])](
                dy, x, weight, rstd, mean, dx, shares, dy.stride(0), x.stride(0), M, N,
                **launch, WHOLE=whole, num_warps=warps,
            )
        block = min(1024, max(8, triton.next_power_of_2(N // (4 * processors))))
        _sum_shares_kernel[triton.cdiv(N, block),](
            shares, dweight, programs, N, ROWS=2048 // block, BLOCK=block, num_warps=128 // warp_size
        )
    return dx, dweight


def _forward_fake(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape, dtype=dtype), x.new_empty(x.shape[:-1], dtype=torch.float32)


def _backward_fake(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(weight.shape)


# library.define costs the host less than custom_op does, and keeps fake tensors and torch.compile working
_library = torch.library.Library("ridgepoint", "FRAGMENT")
_library.define("rms_norm_forward(Tensor x, Tensor weight, float eps, ScalarType dtype) -> (Tensor, Tensor)")
_library.define("rms_norm_backward(Tensor dy, Tensor x, Tensor weight, Tensor rstd) -> (Tensor, Tensor)")
for _key in ("CUDA", "CPU"):  # the CPU only for triton's interpreter
    _library.impl("rms_norm_forward", _forward, _key)
    _library.impl("rms_norm_backward", _backward, _key)
torch.library.register_fake("ridgepoint::rms_norm_forward", _forward_fake, lib=_library)
torch.library.register_fake("ridgepoint::rms_norm_backward", _backward_fake, lib=_library)
_forward_op = torch.ops.ridgepoint.rms_norm_forward.default
_backward_op = torch.ops.ridgepoint.rms_norm_backward.default
# --8<-- [end:op]


# --8<-- [start:autograd]
class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        y, rstd = _forward_op(x, weight, eps, dtype)
        ctx.save_for_backward(x, weight, rstd)
        return y

    @staticmethod
    @once_differentiable  # refuses double backward; without it the second gradient would be silently wrong
    def backward(ctx, dy: Tensor) -> tuple[Tensor, Tensor, None, None]:
        dx, dweight = _backward_op(dy, *ctx.saved_tensors)
        return dx, dweight, None, None
# --8<-- [end:autograd]


# --8<-- [start:public]
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_INTERPRETED = not isinstance(_forward_kernel, triton.runtime.JITFunction)


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """RMSNorm over the last dimension: x / sqrt(mean(x^2) + eps) * weight.

    The function, and the dtypes, of `torch.nn.functional.rms_norm(x, (N,), weight, eps)`: computed in fp32 and
    rounded once, to the dtype of x (under CUDA autocast: to fp32).

    Args:
        x: [..., N], fp32, fp16 or bf16, with any strides. Rows without unit stride are copied first.
        weight: [N], fp32, fp16 or bf16; its dtype may differ from that of x.
        eps: added to the mean square.

    Returns:
        A new contiguous tensor of the shape of x. Gradients flow to x and to weight, each in its own dtype;
        the weight's is bitwise the same in every run.

    Raises:
        TypeError: x or weight is not a tensor of one of these dtypes.
        ValueError: weight is not [N], or on another device than x; or x is on a CPU while
            Triton's interpreter (TRITON_INTERPRET=1) is off.
        RuntimeError: on double backward.

    Source: Zhang & Sennrich, "Root Mean Square Layer Normalization", 2019 (https://arxiv.org/abs/1910.07467).
    """
    for name, t in (("x", x), ("weight", weight)):
        if not isinstance(t, Tensor) or t.dtype not in _DTYPES:
            raise TypeError(f"{name}: expected an fp32, fp16 or bf16 tensor, got {getattr(t, 'dtype', type(t))}")
    if x.dim() == 0 or weight.shape != x.shape[-1:]:
        expected = list(x.shape[-1:]) or "x with at least one dimension"
        raise ValueError(f"weight: expected shape {expected}, got {list(weight.shape)} for x of shape {list(x.shape)}")
    if weight.device != x.device:
        raise ValueError(f"weight: expected on {x.device}, where x is, got {weight.device}")
    if x.device.type == "cpu" and not _INTERPRETED:
        raise ValueError("x: expected a GPU tensor, got one on the CPU (which needs TRITON_INTERPRET=1)")
    dtype = torch.float32 if x.is_cuda and torch.is_autocast_enabled("cuda") else x.dtype
    return _RMSNorm.apply(x, weight, eps, dtype)
# --8<-- [end:public]

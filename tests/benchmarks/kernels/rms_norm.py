"""RMSNorm, forward and backward: what each implementation makes of the memory's bandwidth."""

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import rms_norm as kernel
from tests.benchmarks import blocks, sides, wrong
from tests.benchmarks.bounds import bound, ceiling, h100, machine, traffic
from tests.benchmarks.case import Case, Point, Workload

EPS = 1e-6
LARGE = sides.shapes({
    "narrow": (65536, 1024), "typical": (32768, 4096), "wide": (8192, 16384), "wider": (4096, 32768),
    "widest": (1024, 131072), "odd": (16384, 9000),
})  # fmt: skip
points = partial(blocks.grid, large=LARGE)


def prepare(point: Point, device: torch.device) -> Workload:
    if "batch" in point.shape:
        return blocks.block_workload(
            point, device, blocks.Operations(), blocks.Operations(norm=lambda x, w, b: kernel.rms_norm(x, w, EPS))
        )
    rows, columns = point.shape.values()
    dtype = getattr(torch, point.dtype)
    x = torch.randn(rows, columns, device=device).to(dtype)
    weight = (torch.randn(columns, device=device) + 1).to(dtype)
    dy = (torch.randn(rows, columns, device=device) + x).to(dtype)  # along x, or the gradient's second term is small
    # x and dy once, dx or y once; weight, rstd and dweight are under a thousandth
    return sides.workload(
        point,
        kernel,
        {"x": x, "weight": weight},
        {
            "eager": lambda: eager,
            "ours": lambda: kernel.rms_norm,
            "liger": sides.Side(liger, overwrites=("backward", "both")),
            "quack": quack,
        },
        bytes_read={"forward": 1, "backward": 2, "both": 3}[point.direction] * x.nbytes,
        bytes_written={"forward": 1, "backward": 1, "both": 2}[point.direction] * x.nbytes,
        flops={"forward": 4, "backward": 10, "both": 14}[point.direction] * x.numel(),
        mix="copy" if point.direction == "forward" else "triad",
        grads=(dy,),
        largest_summands=largest_summands(x, weight, dy),
        wrong=wrong_functions(point.direction),
    )


def eager(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, EPS)


def liger() -> sides.Function:
    """Computing in fp32 throughout, as F.rms_norm does; dx is written over dy, which is its default."""
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    return lambda x, weight: LigerRMSNormFunction.apply(x, weight, EPS, 0.0, "gemma")


def quack() -> sides.Function:
    from quack import rmsnorm

    return lambda x, weight: rmsnorm(x, weight, eps=EPS)


def largest_summands(x: Tensor, weight: Tensor, dy: Tensor) -> Mapping[str, float]:
    """Of the gradients' sums, from the formulas in the kernel file, in fp32: x_hat, g and their mean."""
    x_hat, g = F.rms_norm(x.float(), x.shape[-1:], None, EPS), dy.float() * weight.float()
    rstd = (x.float().square().mean(-1, keepdim=True) + EPS).rsqrt()
    mean = (g * x_hat).mean(-1, keepdim=True)
    return {
        "x.grad": (torch.maximum(g.abs(), (x_hat * mean).abs()) * rstd).max().item(),
        "weight.grad": sides.column_sum(dy.float() * x_hat),
    }


def wrong_functions(direction: str) -> Mapping[str, sides.Function]:
    def constant_scale(x: Tensor, weight: Tensor) -> Tensor:
        rstd = (x.float().square().mean(-1, keepdim=True) + EPS).rsqrt()
        return (x * rstd.detach() * weight).to(x.dtype)

    functions = wrong.usual(eager) | {"weight left out": lambda x, weight: eager(x, 1 + 0 * weight)}
    return functions | ({} if direction == "forward" else {"gradient without its second term": constant_scale})


COPY = ceiling("copy", case="kernels/rms-norm")
TRIAD = ceiling("triad", case="kernels/rms-norm")
TENSOR = {"rows": 32768, "columns": 4096, "width": 2}
# What the forward reads and writes, each number once; and what that takes at the rate of a copy.
forward_bytes, forward_at_least = traffic(2, TENSOR, copy=COPY)
# What the backward reads and writes, each number once; and what that takes at the rate of two reads per write.
backward_bytes, backward_at_least = traffic(3, TENSOR, triad=TRIAD)
# Ten operations an element, over two reads and a write.
backward_intensity = bound("FLOP/byte", "10 / (3 * width)", width=2)
# Where the plain fp32 units would be as busy as the memory.
ridge_point = bound("FLOP/byte", "flops / memory", flops=h100("float32"), memory=h100("bandwidth"))
# Five passes at the rate of two reads per write.
five_passes = bound("us", "5 * rows * columns * width / triad", rows=4096, columns=32768, width=2, triad=TRIAD)
# Registers of a thread that its part of a row takes in fp32.
registers_for_x = bound("", "columns / threads", columns=4096, threads=256)
# Two passes over the widest rows at the rate of a copy.
two_passes_widest = bound("us", "2 * rows * columns * width / copy", rows=1024, columns=131072, width=2, copy=COPY)
# Three of them.
three_passes_widest = bound("us", "3 * rows * columns * width / copy", rows=1024, columns=131072, width=2, copy=COPY)
# The shares of dweight that the compiled backward leaves, one for each 16 rows.
compiled_shares_bytes = bound("MB", "rows / each * columns * width", rows=32768, each=16, columns=4096, width=4)
# The shares of dweight that our backward leaves, one for each program.
our_shares_bytes = bound("MB", "programs * columns * width", programs=machine("multiprocessors"), columns=4096, width=4)
# What the norm takes at least: each value is read once and written once.
read_and_written = bound("us", "2 * rows * columns * width / copy", TENSOR, copy=COPY)

CASE = Case(
    question="How close does RMSNorm come to the memory's bandwidth, forward and backward?", check_at=blocks.CHECK_AT
)

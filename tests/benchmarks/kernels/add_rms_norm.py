"""Residual add and RMSNorm, forward and backward: what one kernel for both makes of the memory's bandwidth."""

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import add_rms_norm as kernel
from tests.benchmarks import blocks, sides, wrong
from tests.benchmarks.bounds import bound, ceiling, h100
from tests.benchmarks.case import Case, Point, Workload

EPS = 1e-6
LARGE = sides.shapes({
    "narrow": (65536, 1024), "typical": (32768, 4096), "8k columns": (16384, 8192), "wide": (8192, 16384),
    "wider": (4096, 32768), "odd": (16384, 9000),
})  # fmt: skip
points = partial(blocks.grid, large=LARGE)
Pair = tuple[Tensor, Tensor]


def prepare(point: Point, device: torch.device) -> Workload:
    if "batch" in point.shape:

        def add_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Pair:
            return kernel.add_rms_norm(x, residual, weight, EPS)

        return blocks.block_workload(point, device, blocks.Operations(), blocks.Operations(add_norm=add_norm))
    rows, columns = point.shape.values()
    dtype = getattr(torch, point.dtype)
    x, residual, dy, dh = (torch.randn(rows, columns, device=device).to(dtype) for _ in range(4))
    dy += x + residual  # along h, or the gradient's second term is small
    weight = (torch.randn(columns, device=device) + 1).to(dtype)
    # forward: x and residual, y and h. Backward: dy, dh and h, and one gradient for x and for residual
    return sides.workload(
        point,
        kernel,
        {"x": x, "residual": residual, "weight": weight},
        {"eager": lambda: eager, "ours": lambda: kernel.add_rms_norm, "liger": liger, "quack": quack},
        bytes_read={"forward": 2, "backward": 3, "both": 5}[point.direction] * x.nbytes,
        bytes_written={"forward": 2, "backward": 1, "both": 3}[point.direction] * x.nbytes,
        flops={"forward": 5, "backward": 11, "both": 16}[point.direction] * x.numel(),
        mix="copy" if point.direction == "forward" else "triad",
        outputs=("output", "new_residual"),
        grads=(dy, dh),
        largest_summands=largest_summands(x, residual, weight, dy, dh),
        wrong=wrong_functions(point.direction),
    )


def eager(x: Tensor, residual: Tensor, weight: Tensor) -> Pair:
    h = x + residual
    return F.rms_norm(h, h.shape[-1:], weight, EPS), h


def liger() -> sides.Function:
    """Computing in fp32 throughout, as F.rms_norm does, and not in place, which is its default here."""
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

    return lambda x, residual, weight: LigerFusedAddRMSNormFunction.apply(x, residual, weight, EPS, 0.0, "gemma")


def quack() -> sides.Function:
    from quack import rmsnorm

    return lambda x, residual, weight: rmsnorm(x, weight, residual=residual, eps=EPS, prenorm=True)


def largest_summands(x: Tensor, residual: Tensor, weight: Tensor, dy: Tensor, dh: Tensor) -> Mapping[str, float]:
    """Of the sums, from the formulas in the kernel file, in fp32: h_hat, g and their mean."""
    h, g = x.float() + residual.float(), dy.float() * weight.float()
    h_hat = F.rms_norm(h, h.shape[-1:], None, EPS)
    rstd = (h.square().mean(-1, keepdim=True) + EPS).rsqrt()
    mean = (g * h_hat).mean(-1, keepdim=True)
    of_h = max((torch.maximum(g.abs(), (h_hat * mean).abs()) * rstd).max().item(), dh.float().abs().max().item())
    return {
        "new_residual": max(x.float().abs().max().item(), residual.float().abs().max().item()),
        "x.grad": of_h,
        "residual.grad": of_h,
        "weight.grad": sides.column_sum(dy.float() * h_hat),
    }


def wrong_functions(direction: str) -> Mapping[str, sides.Function]:
    def residual_not_added(x: Tensor, residual: Tensor, weight: Tensor) -> Pair:
        return eager(x, 0 * residual, weight)

    def constant_scale(x: Tensor, residual: Tensor, weight: Tensor) -> Pair:
        h = x + residual
        rstd = (h.float().square().mean(-1, keepdim=True) + EPS).rsqrt()
        return (h * rstd.detach() * weight).to(h.dtype), h

    def second_gradient_dropped(x: Tensor, residual: Tensor, weight: Tensor) -> Pair:
        y, h = eager(x, residual, weight)
        return y, h.detach() + 0 * h

    functions = wrong.usual(eager) | {"residual not added": residual_not_added}
    only_backward = {
        "gradient without its second term": constant_scale,
        "gradient of the new residual dropped": second_gradient_dropped,
    }
    return functions | ({} if direction == "forward" else only_backward)


COPY = ceiling("copy", case="kernels/add-rms-norm")
TRIAD = ceiling("triad", case="kernels/add-rms-norm")
TENSOR = {"rows": 32768, "columns": 4096, "width": 2}
# What fusing saves of the traffic: four passes instead of those of two operations.
saved = bound("%", "1 - fused / apart", fused=4)
pass_bytes = bound("MB", "rows * columns * width", TENSOR)  # One pass over a tensor.
# Four passes at the rate of a copy.
forward_at_least = bound("us", "4 * rows * columns * width / copy", TENSOR, copy=COPY)
# Four passes at the rate of two reads per write.
backward_at_least = bound("us", "4 * rows * columns * width / triad", TENSOR, triad=TRIAD)
# Of the ceiling, what a backward of six passes can reach where four are needed.
most_if_read_twice = bound("%", "fused / apart", fused=4, apart=6)
# Of a multiprocessor's registers, those that one row's share of dweight takes.
registers_for_dweight = bound("%", "columns / registers", columns=32768, registers=h100("registers"))

CASE = Case(
    question="How close does a residual add with RMSNorm come to the memory's bandwidth, forward and backward?",
    check_at=blocks.CHECK_AT,
)

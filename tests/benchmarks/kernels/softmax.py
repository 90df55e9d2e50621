"""Softmax, forward and backward: what each implementation makes of the memory's bandwidth."""

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import softmax as kernel
from tests.benchmarks import blocks, sides, wrong
from tests.benchmarks.bounds import bound, ceiling, h100, traffic
from tests.benchmarks.case import Case, Point, Workload

LARGE = sides.shapes({
    "narrow": (131072, 1024), "typical": (32768, 4096), "wide": (8192, 16384), "wider": (4096, 32768),
    "widest": (1024, 131072), "odd": (16384, 9000),
})  # fmt: skip
points = partial(blocks.grid, large=LARGE)


def prepare(point: Point, device: torch.device) -> Workload:
    if "batch" in point.shape:  # attention with its scores in memory
        return blocks.block_workload(
            point,
            device,
            blocks.Operations(attention=blocks.written_out(eager)),
            blocks.Operations(attention=blocks.written_out(kernel.softmax)),
        )
    rows, columns = point.shape.values()
    dtype = getattr(torch, point.dtype)
    x = torch.randn(rows, columns, device=device).to(dtype)
    dy = (torch.randn(rows, columns, device=device) + 1).to(dtype)  # a mean, or the gradient's second term is small
    # x once, y written; y and dy once, dx written; a step does both
    return sides.workload(
        point,
        kernel,
        {"x": x},
        {
            "eager": lambda: eager,
            "ours": lambda: kernel.softmax,
            "liger": sides.library("liger_kernel.ops.softmax:LigerSoftmaxFunction.apply"),
            "quack": sides.library("quack.softmax:softmax"),
        },
        bytes_read={"forward": 1, "backward": 2, "both": 3}[point.direction] * x.nbytes,
        bytes_written={"forward": 1, "backward": 1, "both": 2}[point.direction] * x.nbytes,
        flops={"forward": 5, "backward": 4, "both": 9}[point.direction] * x.numel(),
        mix="copy" if point.direction == "forward" else "triad",
        grads=(dy,),
        largest_summands={"x.grad": largest_summand(x, dy)},
        wrong=wrong_functions(point.direction),
    )


def eager(x: Tensor) -> Tensor:
    return F.softmax(x, -1)


def largest_summand(x: Tensor, dy: Tensor) -> float:
    """Of the gradient y * dy - y * sum(y * dy), in fp32."""
    y = F.softmax(x.float(), -1)
    product = y * dy.float()
    return torch.maximum(product.abs(), (y * product.sum(-1, keepdim=True)).abs()).max().item()


def wrong_functions(direction: str) -> Mapping[str, sides.Function]:
    def zero_where_small(x: Tensor) -> Tensor:
        y = eager(x)
        return torch.where(y * y.shape[-1] < 1, 0, y)

    def constant_sum(x: Tensor) -> Tensor:
        y = eager(x).detach()
        return y + y * (x - x.detach())

    functions = wrong.usual(eager) | {"zero where it is less than the mean": zero_where_small}
    return functions | ({} if direction == "forward" else {"gradient without its second term": constant_sum})


COPY = ceiling("copy", case="kernels/softmax")
TRIAD = ceiling("triad", case="kernels/softmax")
TENSOR = {"rows": 4096, "columns": 32768, "width": 2}
# What one more operation on the logits takes at the rate of a copy.
scaling_at_least = bound("us", "2 * rows * columns * width / copy", rows=1024, columns=131072, width=2, copy=COPY)
# What the forward reads and writes, each number once; and what that takes at the rate of a copy.
forward_bytes, forward_at_least = traffic(2, TENSOR, copy=COPY)
# What the backward reads and writes, each number once; and what that takes at the rate of two reads per write.
backward_bytes, backward_at_least = traffic(3, TENSOR, triad=TRIAD)
# One exponential for each number at the datasheet's rate.
exponentials_take = bound(
    "us", "rows * columns / (flops / 2 * exponentials / lanes)", TENSOR,
    flops=h100("float32"), lanes=h100("lanes"), exponentials=h100("exponentials"),
)  # fmt: skip
# One row, spread over the threads of a program.
numbers_of_a_thread = bound("", "columns / threads", columns=32768, threads=256)
# How many numbers of a row each thread holds, if one program holds the row.
held_by_a_thread = bound("", "columns / (warps * threads)", columns=131072, warps=16, threads=32)

CASE = Case(
    question="How close does softmax come to the memory's bandwidth, forward and backward, as rows outgrow the cache?",
    check_at=blocks.CHECK_AT,
)

"""LayerNorm, forward and backward: what each implementation makes of the memory's bandwidth."""

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import layer_norm as kernel
from tests.benchmarks import blocks, sides, wrong
from tests.benchmarks.bounds import bound, ceiling, h100, traffic
from tests.benchmarks.case import Case, Point, Workload

EPS = 1e-5
LARGE = sides.shapes({
    "narrow": (131072, 1024), "typical": (32768, 4096), "wide": (8192, 16384), "wider": (4096, 32768),
    "widest": (1024, 131072), "odd": (16384, 9000),
})  # fmt: skip
points = partial(blocks.grid, large=LARGE)


def prepare(point: Point, device: torch.device) -> Workload:
    if "batch" in point.shape:
        plain = lambda x, w, b: F.layer_norm(x, w.shape, w, b, EPS)  # noqa: E731
        ours = lambda x, w, b: kernel.layer_norm(x, w, b, EPS)  # noqa: E731
        return blocks.block_workload(point, device, blocks.Operations(norm=plain), blocks.Operations(norm=ours))
    rows, columns = point.shape.values()
    dtype = getattr(torch, point.dtype)
    x = (torch.randn(rows, columns, device=device) + 1).to(dtype)  # a mean that it matters to subtract
    weight = (torch.randn(columns, device=device) + 1).to(dtype)
    bias = torch.randn(columns, device=device).to(dtype)
    dy = (torch.randn(rows, columns, device=device) + x).to(dtype)  # along x, or two terms of its gradient are small
    # x and dy once, dx or y once; the parameters, their gradients and the rows' statistics are under a thousandth
    return sides.workload(
        point,
        kernel,
        {"x": x, "weight": weight, "bias": bias},
        {"eager": lambda: eager, "ours": lambda: kernel.layer_norm, "liger": liger},
        bytes_read={"forward": 1, "backward": 2, "both": 3}[point.direction] * x.nbytes,
        bytes_written={"forward": 1, "backward": 1, "both": 2}[point.direction] * x.nbytes,
        flops={"forward": 8, "backward": 14, "both": 22}[point.direction] * x.numel(),
        mix="copy" if point.direction == "forward" else "triad",
        grads=(dy,),
        largest_summands=largest_summands(x, weight, dy),
        wrong=wrong_functions(point.direction),
    )


def eager(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, EPS)


def liger() -> sides.Function:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return lambda x, weight, bias: LigerLayerNormFunction.apply(x, weight, bias, EPS)


def largest_summands(x: Tensor, weight: Tensor, dy: Tensor) -> Mapping[str, float]:
    """Of the gradients' sums, from the formulas in the kernel file, in fp32: x_hat, g and their means."""
    x_hat, g = F.layer_norm(x.float(), x.shape[-1:], None, None, EPS), dy.float() * weight.float()
    rstd = (x.float().var(-1, correction=0, keepdim=True) + EPS).rsqrt()
    mean = (g * x_hat).mean(-1, keepdim=True)
    products = dy.float() * x_hat
    return {
        "x.grad": (torch.maximum(g.abs(), (x_hat * mean).abs()) * rstd).max().item(),
        "weight.grad": sides.column_sum(products),
        "bias.grad": sides.column_sum(dy.float()),
    }


def wrong_functions(direction: str) -> Mapping[str, sides.Function]:
    def constant_statistics(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        wide = x.float().detach()
        mean, rstd = wide.mean(-1, keepdim=True), (wide.var(-1, correction=0, keepdim=True) + EPS).rsqrt()
        return ((x - mean) * rstd * weight + bias).to(x.dtype)

    functions = wrong.usual(eager) | {
        "mean not subtracted": lambda x, weight, bias: F.rms_norm(x, x.shape[-1:], weight, EPS) + bias
    }
    return functions | ({} if direction == "forward" else {"gradient without the means": constant_statistics})


COPY = ceiling("copy", case="kernels/layer-norm")
TRIAD = ceiling("triad", case="kernels/layer-norm")
TENSOR = {"rows": 32768, "columns": 4096, "width": 2}
shares = bound("", "2 * columns / threads")  # Registers of a thread for its shares of dweight and dbias.
# Registers that each thread can have where one program fills a multiprocessor.
registers_of_a_thread = bound("", "registers / threads", registers=h100("registers"))
# What the forward reads and writes, each number once; and what that takes at the rate of a copy.
forward_bytes, forward_at_least = traffic(2, TENSOR, copy=COPY)
# What the backward reads and writes, each number once; and what that takes at the rate of two reads per write.
backward_bytes, backward_at_least = traffic(3, TENSOR, triad=TRIAD)
# What rounding the square of a number near the mean can change: half of the distance between two fp32 numbers there.
rounding_of_a_square = bound("", "2 ** (log2(mean**2) // 1 - bits)", mean=10000, bits=24)
# How many bits of a sum of squares can be lost to cancellation, at most.
bits_lost = bound("", "log2(2 * (1 + columns / tile))", columns=524288, tile=8192)
# For how many parts of a row weight and bias fit into an L1 cache.
pairs_in_l1 = bound("", "cache / (columns * width * 2)", cache=h100("cache of a multiprocessor"), columns=8192, width=2)
parts_of_a_row = bound("", "columns / part", columns=131072, part=8192)  # Into how many parts the widest row is cut.
# Five passes at the rate of two reads per write.
five_passes = bound("us", "5 * rows * columns * width / triad", rows=4096, columns=32768, width=2, triad=TRIAD)
# Of the ceiling, what five passes can reach where three are needed.
most_if_read_twice = bound("%", "3 / passes", passes=5)

CASE = Case(
    question="How close does LayerNorm come to the memory's bandwidth, with two column sums in its backward?",
    check_at=blocks.CHECK_AT,
)

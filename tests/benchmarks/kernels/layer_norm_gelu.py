"""LayerNorm and GELU, forward and backward: what arithmetic on the way costs a kernel that memory bounds."""

import copy
from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels import layer_norm_gelu as kernel
from tests.benchmarks import blocks, sides, wrong
from tests.benchmarks.bounds import bound, ceiling, counted, h100
from tests.benchmarks.case import Case, Point, Workload

EPS = 1e-5
LARGE = sides.shapes({
    "narrow": (65536, 1024), "typical": (32768, 4096), "wide": (8192, 16384), "wider": (4096, 32768),
    "widest": (1024, 131072), "odd": (16384, 9000),
})  # fmt: skip
points = partial(blocks.grid, large=LARGE)
STEEPEST = 1.13  # the slope of the GELU at its steepest


def prepare(point: Point, device: torch.device) -> Workload:
    dtype = getattr(torch, point.dtype)
    if "batch" in point.shape:
        batch, tokens, width = point.shape.values()
        plain = MLP(eager, width).to(device, dtype)
        x = torch.randn(batch, tokens, width, device=device).to(dtype)
        mutants = {name: plain.under(function) for name, function in wrong_functions("forward").items()}
        return blocks.module_workload(point, plain, plain.under(kernel.layer_norm_gelu), x, wrong=mutants)
    rows, columns = point.shape.values()
    x = (torch.randn(rows, columns, device=device) + 1).to(dtype)  # a mean that it matters to subtract
    weight = (torch.randn(columns, device=device) + 1).to(dtype)
    bias = torch.randn(columns, device=device).to(dtype)
    dy = (torch.randn(rows, columns, device=device) + x).to(dtype)  # along x, or two terms of its gradient are small
    # x and dy once, dx or y once; the parameters, their gradients and the rows' statistics are under a thousandth
    return sides.workload(
        point,
        kernel,
        {"x": x, "weight": weight, "bias": bias},
        {"eager": lambda: eager, "ours": lambda: kernel.layer_norm_gelu},
        bytes_read={"forward": 1, "backward": 2, "both": 3}[point.direction] * x.nbytes,
        bytes_written={"forward": 1, "backward": 1, "both": 2}[point.direction] * x.nbytes,
        # the norm's 8 and 14, and of the GELU what the kernel file writes: 18 forward, 20 backward
        flops={"forward": 26, "backward": 34, "both": 60}[point.direction] * x.numel(),
        mix="copy" if point.direction == "forward" else "triad",
        grads=(dy,),
        largest_summands=largest_summands(x, weight, dy),
        wrong=wrong_functions(point.direction),
    )


def eager(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.layer_norm(x, x.shape[-1:], weight, bias, EPS))


class MLP(nn.Module):
    """Two matrix products with a norm and a GELU between them, at four times the width: x (..., width) to the same."""

    def __init__(self, function: Callable[[Tensor, Tensor, Tensor], Tensor], width: int):
        super().__init__()
        self.function = function
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.weight = nn.Parameter(torch.ones(4 * width))
        self.bias = nn.Parameter(torch.zeros(4 * width))
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.function(self.up(x), self.weight, self.bias))

    def under(self, function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> "MLP":
        """The same parameters with another function between the products."""
        other = copy.copy(self)
        other.function = function
        return other


def largest_summands(x: Tensor, weight: Tensor, dy: Tensor) -> Mapping[str, float]:
    """Of the gradients' sums, from the formulas in the kernel file, in fp32, with the GELU at its steepest."""
    x_hat, dz = F.layer_norm(x.float(), x.shape[-1:], None, None, EPS), dy.float() * STEEPEST
    g = dz * weight.float()
    rstd = (x.float().var(-1, correction=0, keepdim=True) + EPS).rsqrt()
    mean = (g * x_hat).mean(-1, keepdim=True)
    products = dz * x_hat
    return {
        "x.grad": (torch.maximum(g.abs(), (x_hat * mean).abs()) * rstd).max().item(),
        "weight.grad": sides.column_sum(products),
        "bias.grad": sides.column_sum(dz),
    }


def wrong_functions(direction: str) -> Mapping[str, sides.Function]:
    def constant_statistics(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        wide = x.float().detach()
        mean, rstd = wide.mean(-1, keepdim=True), (wide.var(-1, correction=0, keepdim=True) + EPS).rsqrt()
        return F.gelu(((x - mean) * rstd * weight + bias).to(x.dtype))

    functions = wrong.usual(eager) | {
        "SiLU for GELU": lambda x, weight, bias: F.silu(F.layer_norm(x, x.shape[-1:], weight, bias, EPS))
    }
    return functions | ({} if direction == "forward" else {"gradient without the means": constant_statistics})


COPY = ceiling("copy", case="kernels/layer-norm-gelu")
TRIAD = ceiling("triad", case="kernels/layer-norm-gelu")
TENSOR = {"rows": 32768, "columns": 4096, "width": 2}
# What the forward reads and writes, each number once.
forward_bytes = bound("MB", "2 * rows * columns * width", TENSOR)
# What the backward reads and writes, each number once.
backward_bytes = bound("MB", "3 * rows * columns * width", TENSOR)
# What the forward takes where all its traffic runs at the rate of a copy.
forward_at_least = bound("us", "2 * rows * columns * width / copy", TENSOR, copy=COPY)
# What the backward takes where all its traffic runs at the rate of two reads per write.
backward_at_least = bound("us", "3 * rows * columns * width / triad", TENSOR, triad=TRIAD)
# Instructions that can be issued while a copy moves one element.
instruction_budget = bound("", "flops / 2 / (copy / bytes)", flops=h100("float32"), copy=COPY, bytes=4)
# Seven passes: the forward writes z and the backward reads it.
bytes_if_stored = bound("MB", "7 * rows * columns * width", TENSOR)
# Five passes: the backward computes z again.
bytes_if_computed_again = bound("MB", "5 * rows * columns * width", TENSOR)
# Two column sums of one program, in fp32.
column_sums_bytes = bound("KB", "2 * columns * bytes", columns=16384, bytes=4)
# All registers of a multiprocessor.
registers_bytes = bound("KB", "registers * bytes", registers=h100("registers"), bytes=4)
# Instructions in the forward's machine code for each element of a thread.
instructions_of_an_element = bound(
    "", "instructions / elements",
    instructions=counted("layer_norm_gelu", "forward-32768x4096", "_forward_kernel", "instructions"), elements=64,
)  # fmt: skip
# Two rows, spread over the threads of a program.
elements_of_a_thread = bound("", "rows * columns / threads", rows=2, columns=4096, threads=128)

CASE = Case(
    question="How much arithmetic can a LayerNorm take on, here a GELU, before memory is no longer the bound?",
    check_at=blocks.CHECK_AT,
)

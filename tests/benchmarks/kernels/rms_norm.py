"""RMSNorm, forward and backward: what each implementation makes of the memory's bandwidth."""

from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import rms_norm as kernel
from tests.benchmarks import blocks, sides, wrong
from tests.benchmarks.bounds import bound, ceiling, datasheet, machine
from tests.benchmarks.case import Case, Point, Workload

EPS = 1e-6
LARGE = sides.shapes((65536, 1024), (32768, 4096), (8192, 16384), (4096, 32768), (1024, 131072), (16384, 9000))
SMALL = sides.shapes((256, 1024), (256, 4096), (256, 16384), (256, 32768), (256, 131072))  # as in decoding


def points(device: torch.device) -> Iterator[Point]:
    on_a_cpu = {"rows": 256, "columns": 1024}
    yield from sides.grid(device, LARGE, SMALL, on_a_cpu=on_a_cpu)
    yield from blocks.points(device)


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
        # a partial sum is a summand too; the last one is the result
        "weight.grad": max((dy.float() * x_hat).abs().max().item(), (dy.float() * x_hat).sum(0).abs().max().item()),
    }


def wrong_functions(direction: str) -> Mapping[str, sides.Function]:
    def constant_scale(x: Tensor, weight: Tensor) -> Tensor:
        rstd = (x.float().square().mean(-1, keepdim=True) + EPS).rsqrt()
        return (x * rstd.detach() * weight).to(x.dtype)

    functions = {
        "5% too large": wrong.scaled(eager),
        "last tile not written": wrong.cut(eager),
        "weight left out": lambda x, weight: eager(x, 1 + 0 * weight),
    }
    return functions | ({} if direction == "forward" else {"gradient without its second term": constant_scale})


@bound("MB", rows=32768, columns=4096, width=2)
def forward_bytes(rows: float, columns: float, width: float) -> float:
    """What the forward reads and writes, each number once."""
    return 2 * rows * columns * width


@bound("us", rows=32768, columns=4096, width=2, copy=ceiling("copy", case="kernels/rms-norm"))
def forward_at_least(rows: float, columns: float, width: float, copy: float) -> float:
    """What the forward takes where all its traffic runs at the rate of a copy."""
    return 2 * rows * columns * width / copy


@bound("MB", rows=32768, columns=4096, width=2)
def backward_bytes(rows: float, columns: float, width: float) -> float:
    """What the backward reads and writes, each number once."""
    return 3 * rows * columns * width


@bound("us", rows=32768, columns=4096, width=2, triad=ceiling("triad", case="kernels/rms-norm"))
def backward_at_least(rows: float, columns: float, width: float, triad: float) -> float:
    """What the backward takes where all its traffic runs at the rate of two reads per write."""
    return 3 * rows * columns * width / triad


@bound("FLOP/byte", width=2)
def backward_intensity(width: float) -> float:
    """Ten operations an element, over two reads and a write."""
    return 10 / (3 * width)


@bound("FLOP/byte", flops=datasheet("NVIDIA H200", "float32"), memory=datasheet("NVIDIA H200", "bandwidth"))
def ridge_point(flops: float, memory: float) -> float:
    """Where the plain fp32 units would be as busy as the memory."""
    return flops / memory


@bound("us", rows=4096, columns=32768, width=2, triad=ceiling("triad", case="kernels/rms-norm"))
def five_passes(rows: float, columns: float, width: float, triad: float) -> float:
    """Five passes at the rate of two reads per write."""
    return 5 * rows * columns * width / triad


@bound("", columns=4096, threads=128)
def registers_for_x(columns: float, threads: float) -> float:
    """Registers of a thread that its part of a row takes in fp32."""
    return columns / threads


@bound("KB", columns=131072, width=2)
def widest_row_bytes(columns: float, width: float) -> float:
    """One row of 131072 columns."""
    return columns * width


@bound("us", rows=1024, columns=131072, width=2, copy=ceiling("copy", case="kernels/rms-norm"))
def three_passes_widest(rows: float, columns: float, width: float, copy: float) -> float:
    """Three passes over the widest rows at the rate of a copy."""
    return 3 * rows * columns * width / copy


@bound("MB", rows=32768, each=16, columns=4096, width=4)
def compiled_shares_bytes(rows: float, each: float, columns: float, width: float) -> float:
    """The shares of dweight that the compiled backward leaves, one for each 16 rows."""
    return rows / each * columns * width


@bound("MB", programs=machine("multiprocessors"), columns=4096, width=4)
def our_shares_bytes(programs: float, columns: float, width: float) -> float:
    """The shares of dweight that our backward leaves, one for each program."""
    return programs * columns * width


@bound("us", rows=32768, columns=4096, width=2, copy=ceiling("copy", case="kernels/rms-norm"))
def read_and_written(rows: float, columns: float, width: float, copy: float) -> float:
    """What the norm takes at least: each value is read once and written once."""
    return 2 * rows * columns * width / copy


CHECK_AT = {
    "forward backward both": [{"rows": 64, "columns": 1024}],
    "forward both": [{"batch": 1, "tokens": 64, "width": 256}],
}
POINTS = {  # as pages name them
    "typical": "forward 32768x4096 bfloat16 device",
    "typical backward": "backward 32768x4096 bfloat16 device",
    "wide": "forward 8192x16384 bfloat16 device",
    "wide backward": "backward 8192x16384 bfloat16 device",
    "wider backward": "backward 4096x32768 bfloat16 device",
    "widest": "forward 1024x131072 bfloat16 device",
    "odd": "forward 16384x9000 bfloat16 device",
    "odd backward": "backward 16384x9000 bfloat16 device",
    "small": "forward 256x4096 bfloat16 calls",
    "block": "forward 4x2048x2048 bfloat16 device",
    "block step": "both 4x2048x2048 bfloat16 device",
    "widest backward": "backward 1024x131072 bfloat16 device",
    "narrow backward": "backward 65536x1024 bfloat16 device",
    "wider": "forward 4096x32768 bfloat16 device",
    "narrow": "forward 65536x1024 bfloat16 device",
}
CASE = Case(
    name="kernels/rms-norm",
    question="How close does RMSNorm come to the memory's bandwidth, forward and backward?",
    points=points,
    prepare=prepare,
)

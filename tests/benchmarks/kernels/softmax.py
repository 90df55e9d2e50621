"""Softmax, forward and backward: what each implementation makes of the memory's bandwidth."""

from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import softmax as kernel
from tests.benchmarks import blocks, sides, wrong
from tests.benchmarks.bounds import bound, ceiling, datasheet
from tests.benchmarks.case import Case, Point, Workload

LARGE = sides.shapes((131072, 1024), (32768, 4096), (8192, 16384), (4096, 32768), (1024, 131072), (16384, 9000))
SMALL = sides.shapes((256, 1024), (256, 4096), (256, 16384), (256, 32768), (256, 131072))  # as in decoding


def points(device: torch.device) -> Iterator[Point]:
    on_a_cpu = {"rows": 256, "columns": 1024}
    yield from sides.grid(device, LARGE, SMALL, on_a_cpu=on_a_cpu)
    yield from blocks.points(device)


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
        {"eager": lambda: eager, "ours": lambda: kernel.softmax, "liger": liger, "quack": quack},
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


def liger() -> sides.Function:
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    return LigerSoftmaxFunction.apply


def quack() -> sides.Function:
    from quack.softmax import softmax

    return softmax


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

    functions = {
        "5% too large": wrong.scaled(eager),
        "last tile not written": wrong.cut(eager),
        "zero where it is less than the mean": zero_where_small,
    }
    return functions | ({} if direction == "forward" else {"gradient without its second term": constant_sum})


@bound("us", rows=1024, columns=131072, width=2, copy=ceiling("copy", case="kernels/softmax"))
def scaling_at_least(rows: float, columns: float, width: float, copy: float) -> float:
    """What one more operation on the logits takes at the rate of a copy."""
    return 2 * rows * columns * width / copy


@bound("MB", rows=4096, columns=32768, width=2)
def forward_bytes(rows: float, columns: float, width: float) -> float:
    """What the forward reads and writes, each number once."""
    return 2 * rows * columns * width


@bound("us", rows=4096, columns=32768, width=2, copy=ceiling("copy", case="kernels/softmax"))
def forward_at_least(rows: float, columns: float, width: float, copy: float) -> float:
    """What the forward takes where all its traffic runs at the rate of a copy."""
    return 2 * rows * columns * width / copy


@bound("MB", rows=4096, columns=32768, width=2)
def backward_bytes(rows: float, columns: float, width: float) -> float:
    """What the backward reads and writes, each number once."""
    return 3 * rows * columns * width


@bound("us", rows=4096, columns=32768, width=2, triad=ceiling("triad", case="kernels/softmax"))
def backward_at_least(rows: float, columns: float, width: float, triad: float) -> float:
    """What the backward takes where all its traffic runs at the rate of two reads per write."""
    return 3 * rows * columns * width / triad


@bound(
    "us",
    rows=4096,
    columns=32768,
    flops=datasheet("NVIDIA H200", "float32"),
    lanes=datasheet("NVIDIA H200", "lanes"),
    exponentials=datasheet("NVIDIA H200", "exponentials"),
)
def exponentials_take(rows: float, columns: float, flops: float, lanes: float, exponentials: float) -> float:
    """One exponential for each number at the datasheet's rate."""
    return rows * columns / (flops / 2 * exponentials / lanes)


@bound("", columns=32768, threads=256)
def numbers_of_a_thread(columns: float, threads: float) -> float:
    """One row, spread over the threads of a program."""
    return columns / threads


@bound("", columns=131072, warps=16, threads=32)
def held_by_a_thread(columns: float, warps: float, threads: float) -> float:
    """How many numbers of a row each thread holds, if one program holds the row."""
    return columns / (warps * threads)


CHECK_AT = {
    "forward backward both": [{"rows": 64, "columns": 1024}],
    "forward both": [{"batch": 1, "tokens": 64, "width": 256}],
}
POINTS = {  # as pages name them
    "typical": "forward 32768x4096 bfloat16 device",
    "wider": "forward 4096x32768 bfloat16 device",
    "wider backward": "backward 4096x32768 bfloat16 device",
    "widest": "forward 1024x131072 bfloat16 device",
    "widest backward": "backward 1024x131072 bfloat16 device",
    "small": "forward 256x4096 bfloat16 calls",
    "small wider": "forward 256x32768 bfloat16 graph",
    "small widest": "forward 256x131072 bfloat16 calls",
    "block": "forward 4x2048x2048 bfloat16 device",
    "block step": "both 4x2048x2048 bfloat16 device",
    "narrow backward": "backward 131072x1024 bfloat16 device",
    "odd backward": "backward 16384x9000 bfloat16 device",
    "typical backward": "backward 32768x4096 bfloat16 device",
    "wide backward": "backward 8192x16384 bfloat16 device",
    "narrow": "forward 131072x1024 bfloat16 device",
    "odd": "forward 16384x9000 bfloat16 device",
    "wide": "forward 8192x16384 bfloat16 device",
}
CASE = Case(
    name="kernels/softmax",
    question="How close does softmax come to the memory's bandwidth, forward and backward, as rows outgrow the cache?",
    points=points,
    prepare=prepare,
)

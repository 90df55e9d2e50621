"""A first softmax kernel and its mends: what each is worth, beside eager, the compiler and kernels/softmax.py."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from kernels import softmax as kernel
from snippets.kernels import first_kernel as stages
from snippets.kernels import first_kernel_backward, first_kernel_rows, first_kernel_wide
from tests.benchmarks import sides, wrong
from tests.benchmarks.bounds import ceiling, traffic
from tests.benchmarks.case import Case, Point, Workload
from tests.benchmarks.kernels.softmax import eager, largest_summand

OTHERS = ("eager", "compile", "ours")


def points(device: torch.device) -> Iterator[Point]:
    """Each kind of input with the stages that differ there; a CPU gets no kernels of ours."""
    if device.type == "cpu":
        for direction in ("forward", "both"):
            yield Point({"rows": 256, "columns": 1024}, "float32", direction, ("calls",), ("eager", "compile"))
        return
    usual = {"rows": 32768, "columns": 4096}
    for name, shape, variants in (
        ("typical", usual, ("compile-max", "written-out", "first", "any-length", "any-layout", "any-offset")),
        ("1000 columns", {"rows": 131072, "columns": 1000}, ("first", "any-length", "any-width")),
        ("strided", usual | {"apart": 8192}, ("any-length", "copied", "any-layout")),
        ("", {"rows": 8192, "columns": 16384}, ("any-offset", "more-warps")),
        ("wider", {"rows": 4096, "columns": 32768}, ("any-offset", "more-warps", "any-width")),
        ("widest", {"rows": 1024, "columns": 131072}, ("any-offset", "more-warps", "any-width")),
    ):
        yield Point(shape, "bfloat16", "forward", variants=(*OTHERS, *variants), shown=bool(name), name=name)
    yield Point(usual, "bfloat16", "both", variants=(*OTHERS, "with-backward"), name="typical step")
    small, beside = {"rows": 256, "columns": 1024}, (*OTHERS, "first", "with-backward")
    yield Point(small, "bfloat16", "forward", ("calls", "device"), beside, name="small narrow")


def prepare(point: Point, device: torch.device) -> Workload:
    """x (rows, columns); its rows lie `apart` numbers from each other where the shape says so."""
    rows, columns = point.shape["rows"], point.shape["columns"]
    dtype = getattr(torch, point.dtype)
    x = torch.randn(rows, point.shape.get("apart", columns), device=device).to(dtype)[:, :columns]
    dy = (torch.randn(rows, columns, device=device) + 1).to(dtype)  # a mean, or the gradient's second term is small
    nbytes = x.numel() * x.itemsize
    both = point.direction == "both"
    return sides.workload(
        replace(point, variants=None),  # where a point asks for max-autotune, it is built
        kernel,
        {"x": x},
        {
            "eager": lambda: eager,
            "written-out": lambda: stages.written_out,
            "first": lambda: stages.first,
            "any-length": lambda: first_kernel_rows.any_length,
            "copied": lambda: copied,
            "any-layout": lambda: first_kernel_rows.any_layout,
            "any-offset": lambda: first_kernel_rows.any_offset,
            "more-warps": lambda: first_kernel_wide.more_warps,
            "any-width": lambda: first_kernel_wide.any_width,
            "with-backward": lambda: first_kernel_backward.with_backward,
            "ours": lambda: kernel.softmax,
        },
        bytes_read=(3 if both else 1) * nbytes,  # a step reads x in forward, y and dy in backward
        bytes_written=(2 if both else 1) * nbytes,
        flops=(9 if both else 5) * x.numel(),
        mix="triad" if both else "copy",
        grads=(dy,),
        largest_summands={"x.grad": largest_summand(x, dy)} if both else {},
        wrong=wrong_functions(both),
    )


def copied(x: Tensor) -> Tensor:
    """The kernel that knows no strides, after a copy."""
    return first_kernel_rows.any_length(x.contiguous())


def wrong_functions(both: bool) -> Mapping[str, sides.Function]:
    def without_mask(x: Tensor) -> Tensor:
        """The sum runs on into the next row, by an eighth of a row."""
        exps = torch.exp(x.float() - x.float().amax(-1, keepdim=True))
        further = exps[..., : x.shape[-1] // 8].roll(-1, 0)
        return (exps / (exps.sum(-1, keepdim=True) + further.sum(-1, keepdim=True))).to(x.dtype)

    def without_strides(x: Tensor) -> Tensor:
        """Rows are read elsewhere than they lie: from half a row further on."""
        return eager(x.flatten().roll(-(x.shape[-1] // 2), 0).view(x.shape))

    def without_sum(x: Tensor) -> Tensor:
        y = eager(x).detach()
        return y + y * (x - x.detach())

    functions = wrong.usual(eager) | {"no mask": without_mask, "no strides": without_strides}
    return functions | ({"a gradient without its sum": without_sum} if both else {})


COPY = ceiling("copy", case="kernels/first-kernel")
TENSOR = {"rows": 32768, "columns": 4096, "width": 2}
# What the forward reads and writes, each number once; and what that takes at the rate of a copy.
forward_bytes, forward_at_least = traffic(2, TENSOR, copy=COPY)

LABELS = {
    "written-out": {"label": "written out in PyTorch", "short": "written out", "role": "other"},
    "first": {"label": "first kernel", "role": "rewrite"},
    "any-length": {"label": "with a mask", "role": "rewrite"},
    "copied": {"label": "with a mask, after a copy", "short": "after a copy", "role": "rewrite"},
    "any-layout": {"label": "with strides", "role": "rewrite-2"},
    "any-offset": {"label": "with 64-bit offsets", "short": "64-bit", "role": "rewrite-2"},
    "more-warps": {"label": "with more warps", "short": "more warps", "role": "rewrite-2"},
    "any-width": {"label": "with a loop for wide rows", "short": "with a loop", "role": "rewrite-2"},
    "with-backward": {"label": "with a backward", "role": "rewrite-2"},
}
CASE = Case(
    question="What is each mend of a first softmax kernel worth, and what is left to the one that is offered to copy?",
    check_at={
        "forward both": [{"rows": 64, "columns": 1024}],
        "forward": [{"rows": 64, "columns": 1024, "apart": 2048}],
    },
)

"""Softmax, with a mask and without, and cross-entropy at every level: where does climbing on stop to pay?"""

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from snippets.patterns.softmax_and_loss import COMPONENTS, masked_softmax_native, softmax_native
from tests.benchmarks import levels, wrong
from tests.benchmarks.case import Case, Point, Results, Workload


def points(device: torch.device) -> Iterator[Point]:
    names = {"masked_softmax": "masked softmax", "cross_entropy": "cross entropy", "large softmax": "wide softmax"}
    yield from levels.points(device, COMPONENTS, names)


def prepare(point: Point, device: torch.device) -> Workload:
    """Bytes are the least: the backward of a softmax reads its result, and a loss can write its gradient at once."""
    workload = levels.prepare(point, device, COMPONENTS, WRONG)
    if point.direction == "both":
        workload = replace(workload, wrong={**workload.wrong, "a gradient of the largest only": only_the_largest})
    rows, columns = point.shape.values()
    tensor, both = rows * columns * getattr(torch, point.dtype).itemsize, point.direction == "both"
    mask = rows * columns if point.part == "masked_softmax" else 0  # a byte for each
    if point.part == "cross_entropy":
        if not both:  # a mean over thousands of rows hardly shows whose target each had; their gradients do
            workload = replace(workload, wrong={what: f for what, f in workload.wrong.items() if what != LATE})
        return replace(
            workload,
            bytes_read=tensor,
            bytes_written=tensor if both else 0,
            flops=(9 if both else 4) * rows * columns,
            mix="copy" if both else "read",
        )
    return replace(
        workload,
        bytes_read=(3 if both else 1) * tensor + mask,
        bytes_written=(2 if both else 1) * tensor,
        flops=(9 if both else 5) * rows * columns,
        # the gradient is y * dy - y * sum(y * dy), in which y * dy is about as large as y
        largest_summands={"x.grad": workload.reference()["output"].max().item()} if both else workload.largest_summands,
    )


def only_the_largest(baseline: Results) -> Results:
    """The gradient has its largest element in each row, which is that of the target or of the largest probability."""
    (name, grad) = next((name, t) for name, t in baseline.items() if name.endswith(".grad"))
    size = grad.abs()
    return {**baseline, name: torch.where(size == size.amax(-1, keepdim=True), grad, 0)}


def part_of_the_sum(logits: Tensor, target: Tensor) -> Tensor:
    """Half of the row is left out."""
    half = logits[:, : logits.shape[1] // 2].float().logsumexp(-1)
    return (half - logits.float().gather(1, target[:, None])[:, 0]).mean().to(logits.dtype)


LATE = "targets a row late"
WRONG: levels.Wrong = {
    "softmax": {
        "last tile not written": wrong.cut(softmax_native),
        "zero where it is less than the mean": lambda x: torch.where(
            softmax_native(x) * x.shape[-1] < 1, 0, softmax_native(x)
        ),
        "logits 20% too large": lambda x: softmax_native(1.2 * x),
    },
    "masked_softmax": {
        "no mask": lambda x, keep: softmax_native(x),
        "masked after the sum": lambda x, keep: softmax_native(x) * keep,
        "the mask is a column late": lambda x, keep: masked_softmax_native(x, keep.roll(1, -1)),
    },
    "cross_entropy": {
        "half of the row left out of the sum": part_of_the_sum,
        "logits 20% too large": lambda logits, target: F.cross_entropy(1.2 * logits, target),
        LATE: lambda logits, target: F.cross_entropy(logits, target.roll(1)),
    },
}
CASE = Case(
    question="Which level does a softmax need, which one a masked softmax, and which one a loss?",
    check_at={
        "forward both": [
            {"part": "softmax", "rows": 64, "columns": 1024},
            {"part": "masked_softmax", "rows": 64, "columns": 1024},
            {"part": "cross_entropy", "rows": 64, "vocabulary": 1024},
        ]
    },
)

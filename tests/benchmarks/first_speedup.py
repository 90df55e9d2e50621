"""The first speedup: one transformer block, five ways, at a small width and at a large one."""

import copy
import math
from collections.abc import Callable, Iterator

import torch

from snippets.first_speedup import VERSIONS, Better, FirstDraft, make, version
from tests.benchmarks.bounds import bound, captured
from tests.benchmarks.case import Case, Point, Results, Variant, Workload

SMALL = {"width": 512, "heads": 8, "batch": 4, "tokens": 128}
LARGE = {"width": 2048, "heads": 16, "batch": 8, "tokens": 1024}


def points(device: torch.device) -> Iterator[Point]:
    """Small: with the host's time and without. Large: matrix-bound, so in a burst and under sustained load."""
    if device.type == "cpu":  # no launches to record: there is no CUDA graph to measure
        yield Point(SMALL, "float32", modes=("calls",), variants=VERSIONS[:-1])
        return
    yield Point(SMALL, "bfloat16", modes=("calls", "device"), name="small")
    yield Point(LARGE, "bfloat16", modes=("sustained", "burst"), name="large")


def prepare(point: Point, device: torch.device) -> Workload:
    """A block with seeded weights, shared by all versions, and its input."""
    dtype = getattr(torch, point.dtype)
    draft, x = make(**point.shape, device=device, dtype=dtype)
    for linear in (draft.q, draft.k, draft.v, draft.out, draft.up, draft.down):
        linear.weight.mul_(2)  # as drawn, attention is a mean over all tokens, which is next to nothing

    def reference() -> Results:
        exact = Better(copy.deepcopy(draft)).requires_grad_(False).double()
        return added(torch.cat([exact(one) for one in x.double().split(1)]))

    def added(returned: torch.Tensor) -> Results:
        """What the block adds to its input, which is no merit of the block's and would hide an error. In place."""
        return {"output": returned.sub_(x)}

    def wrongly(spoil: Callable[[FirstDraft], object]) -> Callable[[Results], Results]:
        def spoilt(baseline: Results) -> Results:
            spoil(block := copy.deepcopy(draft))
            return added(block(x))

        return spoilt

    width, tokens, rows = point.shape["width"], point.shape["tokens"], x.shape[0] * x.shape[1]
    weights = 12 * width**2 + 2 * width
    return Workload(
        variants={name: Variant(lambda name=name: version(name, draft, x), added) for name in VERSIONS},  # type: ignore
        baseline="first-draft",
        reference=reference,
        bytes_read=(weights + x.numel()) * dtype.itemsize,
        bytes_written=x.numel() * dtype.itemsize,
        # 12 width^2 multiply-adds a token in the matrices; causal attention needs half of tokens^2, twice
        flops=2 * rows * 12 * width**2 + 2 * rows * tokens * width,
        wrong={what: wrongly(spoil) for what, spoil in WRONG.items()},
    )


WRONG = {
    "without attention": lambda block: block.out.weight.zero_(),
    "scores not scaled": lambda block: block.q.weight.mul_(math.sqrt(block.q.out_features / block.heads)),
    "norms 5% too large": lambda block: (block.norm1.mul_(1.05), block.norm2.mul_(1.05)),
    "activation 10% too large": lambda block: block.down.weight.mul_(1.1),
}


# The part of a step during which no kernel runs.
left_without_kernels = bound(
    "%", "1 - busy", busy=captured("launching", "a kernel runs for", of="validation/diagnosis_programs")
)

LABELS = {
    "first-draft": {"label": "first draft", "role": "eager"},
    "better": {"label": "better design", "short": "better", "role": "rewrite"},
    "graph": {"label": "CUDA graph", "short": "graph", "role": "graph"},
    "compile-draft": {"label": "first draft, compiled", "role": "compile-max"},
    "compile": {"label": "better design, compiled", "short": "better, compiled", "role": "compile"},
}
CASE = Case(
    question="How much faster does a transformer block get without changing what it computes?",
    check_at={"forward": [{"width": 256, "heads": 2, "batch": 1, "tokens": 64}]},
)

"""The first speedup: one transformer block, five ways, at a small width and at a large one."""

import copy
from collections.abc import Iterator

import torch

from snippets.first_speedup import VERSIONS, Better, make, version
from tests.benchmarks.case import Case, Point, Variant, Workload

SMALL = {"width": 512, "heads": 8, "batch": 4, "tokens": 128}
LARGE = {"width": 2048, "heads": 16, "batch": 8, "tokens": 1024}


def points(device: torch.device) -> Iterator[Point]:
    """Small: with the host's time and without. Large: matrix-bound, so in a burst and under sustained load."""
    if device.type == "cpu":  # no launches to record: there is no CUDA graph to measure
        yield Point(SMALL, "float32", modes=("calls",), variants=VERSIONS[:-1])
        return
    yield Point(SMALL, "bfloat16", modes=("calls", "device"))
    yield Point(LARGE, "bfloat16", modes=("burst", "sustained"))


def prepare(point: Point, device: torch.device) -> Workload:
    """A block with seeded weights, shared by all versions, and its input."""
    dtype = getattr(torch, point.dtype)
    draft, x = make(**point.shape, device=device, dtype=dtype)

    def reference() -> dict[str, torch.Tensor]:
        exact = Better(copy.deepcopy(draft)).requires_grad_(False).double()
        return {"output": torch.cat([exact(one) for one in x.double().split(1)])}

    width, tokens, rows = point.shape["width"], point.shape["tokens"], x.shape[0] * x.shape[1]
    weights = 12 * width**2 + 2 * width
    return Workload(
        variants={name: Variant(lambda name=name: version(name, draft, x)) for name in VERSIONS},  # type: ignore[misc]
        baseline="first-draft",
        reference=reference,
        bytes_read=(weights + x.numel()) * dtype.itemsize,
        bytes_written=x.numel() * dtype.itemsize,
        # 12 width^2 multiply-adds a token in the matrices; causal attention needs half of tokens^2, twice
        flops=2 * rows * 12 * width**2 + 2 * rows * tokens * width,
    )


LABELS = {
    "first-draft": {"label": "first draft", "role": "eager"},
    "better": {"label": "better design", "short": "better", "role": "rewrite"},
    "graph": {"label": "CUDA graph", "short": "graph", "role": "graph"},
    "compile-draft": {"label": "first draft, compiled", "role": "compile-max"},
}
CASE = Case(
    name="first-speedup",
    question="How much faster does a transformer block get without changing what it computes?",
    sources=("snippets/first_speedup.py",),
    points=points,
    prepare=prepare,
)

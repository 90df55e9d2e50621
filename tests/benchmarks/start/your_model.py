"""What usually costs most in eight kinds of model, before and after the fix."""

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor

from snippets.start.your_model import KINDS, SMALL
from tests.benchmarks.case import Case, Point, Results, Variant, Workload

# --8<-- [start:sizes]
TYPICAL = {
    "LoRA": {"tokens": 8, "width": 4096, "inner": 16},
    "encoder-decoder": {"batch": 8, "length": 1024, "width": 1024},
    "diffusion": {"channels": 256, "side": 32},
    "graph network": {"rows": 65536, "width": 128},
    "state-space or scan": {"steps": 512, "channels": 4096},
    "reinforcement learning": {"batch": 64, "width": 256},
    "physics-informed": {"rows": 65536, "width": 64},
    "FFT": {"rows": 256, "length": 8192},
}
# --8<-- [end:sizes]
BF16 = ("LoRA", "encoder-decoder", "diffusion")  # what runs in bf16 on a GPU
WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "5% too large": lambda y: 1.05 * y,
    "zero": torch.zeros_like,
    "in reverse order": lambda y: y.flip(0) if len(y) > 1 else y.flip(1),
    "second half missing": lambda y: torch.cat([half * y.flatten().chunk(2)[1 - half] for half in (1, 0)]).view_as(y),
}


def points(device: torch.device) -> Iterable[Point]:
    """One of each kind. Small models wait for their host: a call is what counts."""
    if device.type == "cpu":
        yield from (Point(shape, "float32", "forward", ("calls",), part=part) for part, shape in SMALL.items())
        return
    for part, shape in TYPICAL.items():
        yield Point(shape, "bfloat16" if part in BF16 else "float32", "forward", ("calls",), part=part, name=part)


def prepare(point: Point, device: torch.device) -> Workload:
    """Random inputs and weights; no gradients, but of the network whose derivatives are the loss."""
    kind = KINDS[point.part]
    dtype = torch.float32 if point.part == "FFT" else getattr(torch, point.dtype)  # no FFT has bf16
    inputs = kind.inputs(point.shape, device, dtype)

    def spoilt(change: Callable[[Tensor], Tensor]) -> Callable[[Results], Results]:
        return lambda baseline: {"output": change(baseline["output"])}

    return Workload(
        variants={
            "before": Variant(lambda: partial(kind.before, *inputs)),
            "after": Variant(lambda: kind.fixed(*inputs)),
        },
        baseline="before",
        reference=lambda: {"output": kind.before(*(t.double() for t in inputs))},
        bytes_read=0,  # no bound is drawn: each kind is limited by something else
        bytes_written=0,
        flops=0,
        wrong={what: spoilt(change) for what, change in WRONG.items()},
    )


LABELS = {
    "before": {"label": "before", "role": "eager"},
    "after": {"label": "after", "role": "rewrite"},
}
CASE = Case(
    question="What does the usual fix gain in each kind of model?",
    check_at={"forward": [{"part": part, **shape} for part, shape in SMALL.items()]},
)

"""What a graph break costs: the host's time where launching rules, lost fusion where memory does."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from snippets.compiler.graph_breaks import looped, model
from tests.benchmarks import alike, wrong
from tests.benchmarks.bounds import bound, ceiling, wall
from tests.benchmarks.case import Case, Point, Workload
from tests.benchmarks.own import own

LAYERS = 4


COPY = ceiling("copy", case="compiler/graph-breaks")
TENSORS = {"layers": 4, "rows": 16384, "columns": 2048, "width": 2}
# What one of the four breaks adds to a call, as a share of the call without breaks.
added_by_a_break = bound(
    "%", "(four - whole) / 4 / whole", four=wall("four-breaks", "small"), whole=wall("compile", "small")
)
# The bytes of each layer's activation and output, which stay in memory until the last layer returns.
kept_at_breaks = bound("MB", "layers * 2 * rows * columns * width", TENSORS)

LABELS = {
    "one-break": {"label": "compile, one break", "short": "one break", "role": "rewrite"},
    "four-breaks": {"label": "compile, four breaks", "short": "four breaks", "role": "rewrite-2"},
    "loop": {"label": "compile, a break in a loop", "short": "in a loop", "role": "other"},
}


def points(device: torch.device) -> Iterable[Point]:
    """A small model, whose launches rule, and a large one."""
    if device.type == "cpu":
        yield Point({"rows": 16, "width": 64}, "float32", "forward", ("calls",))
        return
    yield Point({"rows": 64, "width": 256}, "bfloat16", "forward", ("calls", "device"), name="small")
    yield Point({"rows": 16384, "width": 2048}, "bfloat16", "forward", ("device", "calls"), name="large")


def prepare(point: Point, device: torch.device) -> Workload:
    """x (rows, width) and four weights (width, width)."""
    rows, width = point.shape.values()
    dtype = getattr(torch, point.dtype)
    x = torch.randn(rows, width, device=device).to(dtype)
    weights = tuple((torch.randn(width, width, device=device) * 2 * width**-0.5).to(dtype) for _ in range(LAYERS))

    def of(function: Callable, *further: int) -> alike.Function:
        return lambda x, *weights: function(x, weights, *further)

    def compiled(function: Callable) -> Callable:
        return torch.compile(own(function), dynamic=False)

    made = alike.workload(
        {
            "eager": of(model),
            "compile": of(compiled(model), 0),
            "one-break": of(compiled(model), 1),
            "four-breaks": of(compiled(model), LAYERS),
            "loop": of(compiled(looped)),
        },
        [x, *weights],
        written=0,
        flops=0,
        wrong={
            "5% too large": wrong.scaled(of(model)),
            "layers swapped": lambda x, *weights: model(x, weights[::-1]),
            "activation left out": without_activation,
        },
        spoilt={"last rows not written": alike.each(alike.cut)},
    )
    return replace(made, bytes_read=0)  # no bound is drawn: matrix products take most of the time


def without_activation(x: Tensor, *weights: Tensor) -> Tensor:
    for weight in weights:
        x = F.rms_norm(x + x @ weight, x.shape[-1:])
    return x


CASE = Case(
    question="What does a graph break cost, in a small model and in a large one?",
    check_at={"forward": [{"rows": 64, "width": 256}]},
)

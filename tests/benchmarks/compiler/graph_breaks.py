"""What a graph break costs: the host's time where launching rules, lost fusion where memory does."""

from collections.abc import Callable, Iterable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from snippets.compiler.graph_breaks import looped, model
from tests.benchmarks import wrong
from tests.benchmarks.bounds import bound, ceiling, wall
from tests.benchmarks.case import Call, Case, Point, Variant, Workload
from tests.benchmarks.own import own

LAYERS = 4


COPY = ceiling("copy", case="compiler/graph-breaks")
TENSORS = {"layers": 4, "rows": 16384, "columns": 2048, "width": 2}
# What one of the four breaks adds to a call, as a share of the call without breaks.
added_by_a_break = bound(
    "%", "(four - whole) / 4 / whole", four=wall("four-breaks", "small"), whole=wall("compile", "small")
)
# What writing and reading each layer's activation at its break takes at the bandwidth of a copy.
copying_at_breaks = bound("us", "layers * 2 * rows * columns * width / copy", TENSORS, copy=COPY)
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

    def variant(function: Callable, *further: int) -> Variant:
        return Variant(lambda: compiled(function, x, weights, *further))

    return Workload(
        variants={
            "eager": Variant(lambda: partial(model, x, weights)),
            "compile": variant(model, 0),
            "one-break": variant(model, 1),
            "four-breaks": variant(model, LAYERS),
            "loop": variant(looped),
        },
        baseline="eager",
        reference=lambda: {"output": model(x.double(), tuple(weight.double() for weight in weights))},
        bytes_read=0,  # no bound is drawn: matrix products take most of the time
        bytes_written=0,
        flops=0,
        wrong={
            "5% too large": lambda baseline: {"output": wrong.scaled(model)(x, weights)},
            "last tile not written": lambda baseline: {"output": cut(model(x, weights))},
            "layers swapped": lambda baseline: {"output": model(x, weights[::-1])},
            "activation left out": lambda baseline: {"output": without_activation(x, weights)},
        },
    )


def compiled(function: Callable[..., Tensor], *arguments: object) -> Call:
    """Compiled and called once."""
    call = partial(torch.compile(own(function), dynamic=False), *arguments)
    call()
    return call


def cut(output: Tensor) -> Tensor:
    """The last quarter of the columns was never written."""
    kept = output.shape[-1] * 3 // 4
    return F.pad(output[..., :kept], (0, output.shape[-1] - kept))


def without_activation(x: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
    for weight in weights:
        x = F.rms_norm(x + x @ weight, x.shape[-1:])
    return x


CASE = Case(
    question="What does a graph break cost, in a small model and in a large one?",
    check_at={"forward": [{"rows": 64, "width": 256}]},
)

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


@bound("%", four=wall("four-breaks", "small"), whole=wall("compile", "small"))
def added_by_a_break(four: float, whole: float) -> float:
    """What one of the four breaks adds to a call, as a share of the call without breaks."""
    return (four - whole) / 4 / whole


@bound("us", layers=4, rows=16384, columns=2048, width=2, copy=ceiling("copy", case="compiler/graph-breaks"))
def copying_at_breaks(layers: float, rows: float, columns: float, width: float, copy: float) -> float:
    """What writing and reading each layer's activation at its break takes at the bandwidth of a copy."""
    return layers * 2 * rows * columns * width / copy


@bound("MB", layers=4, rows=16384, columns=2048, width=2)
def kept_at_breaks(layers: float, rows: float, columns: float, width: float) -> float:
    """The bytes of each layer's activation and output, which stay in memory until the last layer returns."""
    return layers * 2 * rows * columns * width


CHECK_AT = {"forward": [{"rows": 64, "width": 256}]}
LABELS = {
    "one-break": {"label": "compile, one break", "short": "one break", "role": "rewrite"},
    "four-breaks": {"label": "compile, four breaks", "short": "four breaks", "role": "rewrite-2"},
    "loop": {"label": "compile, a break in a loop", "short": "in a loop", "role": "other"},
}
POINTS = {  # as pages name them
    "small": "forward 64x256 bfloat16 calls",
    "large": "forward 16384x2048 bfloat16 device",
}


def points(device: torch.device) -> Iterable[Point]:
    """A small model, whose launches rule, and a large one."""
    if device.type == "cpu":
        yield Point({"rows": 16, "width": 64}, "float32", "forward", ("calls",))
        return
    for rows, width in ((64, 256), (16384, 2048)):
        yield Point({"rows": rows, "width": width}, "bfloat16", "forward", ("device", "calls"))


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
    name="compiler/graph-breaks",
    question="What does a graph break cost, in a small model and in a large one?",
    points=points,
    prepare=prepare,
)

"""How far from float64 is each softmax, and what did the nearer one cost?"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from snippets.validation.equivalence import misses_columns, never_stores, plain, rounds_once
from tests.benchmarks.bounds import bound
from tests.benchmarks.case import Case, Point, Variant, Workload


def points(device: torch.device) -> Iterator[Point]:
    """Both dtypes at one shape: the bound is as sharp as the dtype."""
    rows, modes = (8192, ("device",)) if device.type == "cuda" else (8, ("calls",))
    for dtype in ("bfloat16", "float32"):
        name = "softmax" if dtype == "bfloat16" else ""
        yield Point({"rows": rows, "columns": 32768}, dtype, modes=modes, name=name)


def prepare(point: Point, device: torch.device) -> Workload:
    """Softmax of normal numbers; the plain version in the same dtype sets the bound."""
    x = torch.randn(*point.shape.values(), device=device).to(getattr(torch, point.dtype))

    def of(function: Callable[[Tensor], Tensor]) -> Variant:
        return Variant(lambda: lambda: function(x))

    return Workload(
        variants={
            "eager": of(plain),
            "softmax": of(lambda x: torch.softmax(x, -1)),
            "rounds-once": of(rounds_once),
            "compile": Variant(lambda: compiled(x)),
            "misses-columns": of(misses_columns),
            "never-stores": of(never_stores),
        },
        baseline="eager",
        reference=lambda: {"output": plain(x.double())},
        bytes_read=x.nbytes,
        bytes_written=x.nbytes,
        flops=0,
        wrong={
            "5% too large": lambda right: {"output": 1.05 * right["output"]},
            "last tile not written": lambda right: {"output": F.pad(right["output"][:, :-128], (0, 128))},
            "zero where it is less than the mean": lambda right: {
                "output": torch.where(right["output"] * x.shape[1] < 1, 0, right["output"])
            },
        },
    )


def compiled(x: Tensor) -> Callable[[], Tensor]:
    function = torch.compile(plain)
    return lambda: function(x)


# The average value of a row of a softmax.
average_softmax = bound("", "1 / columns", columns=32768)
# What each value of the gradient's row may be off by.
largest_error_allowed = bound("", "2 / steps", steps=128)
# By how much the values grow where columns are missing from the sum.
too_large_by = bound("%", "left_out / (columns - left_out)", left_out=128, columns=32768)

LABELS = {
    "softmax": {"label": "torch.softmax", "role": "peer-1"},
    "rounds-once": {"label": "rounds once", "role": "other-2"},
    "misses-columns": {"label": "misses columns", "role": "other"},
    "never-stores": {"label": "never-stores", "role": "other"},
}
CASE = Case(
    question="Is the fast version nearer to float64 than the slow one, or farther?",
    points=points,
    prepare=prepare,
    check_at={"forward": [{"rows": 8, "columns": 32768}]},
)

"""How far from float64 is each softmax, and what did the nearer one cost?"""

from collections.abc import Iterator

import torch
from torch import Tensor

from snippets.validation.equivalence_candidates import misses_columns, never_stores, plain, rounds_once
from tests.benchmarks import alike, wrong
from tests.benchmarks.bounds import bound
from tests.benchmarks.case import Case, Point, Workload


def points(device: torch.device) -> Iterator[Point]:
    """Both dtypes at one shape: the bound is as sharp as the dtype."""
    rows, modes = (8192, ("device",)) if device.type == "cuda" else (8, ("calls",))
    for dtype in ("bfloat16", "float32"):
        name = "softmax" if dtype == "bfloat16" else ""
        yield Point({"rows": rows, "columns": 32768}, dtype, modes=modes, name=name)


def prepare(point: Point, device: torch.device) -> Workload:
    """Softmax of normal numbers; the plain version in the same dtype sets the bound."""
    x = torch.randn(*point.shape.values(), device=device).to(getattr(torch, point.dtype))

    return alike.workload(
        {
            "eager": plain,
            "softmax": lambda x: torch.softmax(x, -1),
            "rounds-once": rounds_once,
            "compile": torch.compile(plain),
            "misses-columns": misses_columns,
            "never-stores": never_stores,
        },
        [x],
        x.nbytes,
        flops=0,
        wrong=wrong.usual(plain) | {"zero where it is less than the mean": without_small},
    )


def without_small(x: Tensor) -> Tensor:
    return torch.where(plain(x) * x.shape[1] < 1, 0, plain(x))


average_softmax = bound("", "1 / columns", columns=32768)  # The average value of a row of a softmax.
largest_error_allowed = bound("", "2 / steps", steps=128)  # What each value of the gradient's row may be off by.
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
    check_at={"forward": [{"rows": 8, "columns": 32768}]},
)

"""GELU, SiLU and SwiGLU at every level: what does an activation cost beside the bytes that it moves?"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F

from snippets.patterns.activations import COMPONENTS, quick_gelu_written, swiglu_native
from tests.benchmarks import levels, wrong
from tests.benchmarks.case import Case, Point, Workload

GELU_TANH = partial(F.gelu, approximate="tanh")


def points(device: torch.device) -> Iterator[Point]:
    yield from levels.points(device, COMPONENTS, also=False)


def prepare(point: Point, device: torch.device) -> Workload:
    return levels.prepare(point, device, COMPONENTS, WRONG)


WRONG: levels.Wrong = {
    "gelu": {
        "last tile not written": wrong.cut(F.gelu),
        "SiLU": F.silu,
        "of twice the argument": lambda x: F.gelu(2 * x) / 2,
    },
    "gelu_tanh": {
        "last tile not written": wrong.cut(GELU_TANH),
        "SiLU": F.silu,
        "of twice the argument": lambda x: GELU_TANH(2 * x) / 2,
    },
    "silu": {
        "last tile not written": wrong.cut(F.silu),
        "ReLU": F.relu,
        "a factor in the sigmoid": quick_gelu_written,
    },
    "quick_gelu": {
        "last tile not written": wrong.cut(quick_gelu_written),
        "no factor in the sigmoid": F.silu,
        "ReLU": F.relu,
    },
    "swiglu": {
        "last tile not written": wrong.cut(swiglu_native),
        "gate and up the other way round": lambda gate, up: swiglu_native(up, gate),
        "the sigmoid alone": lambda gate, up: torch.sigmoid(gate) * up,
    },
}
CASE = Case(
    name="patterns/activations",
    question="Which level does an activation need, and is one activation cheaper than another?",
    sources=("snippets/patterns/activations.py", "kernels/swiglu.py", *levels.SOURCES),
    points=points,
    prepare=prepare,
)

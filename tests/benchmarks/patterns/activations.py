"""GELU, its approximations, SiLU and SwiGLU at every level: what is left to gain where a function is one operation?"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from snippets.patterns.activations import COMPONENTS, swiglu_native
from snippets.patterns.activations_forms import gelu_native, gelu_tanh_native, silu_native
from snippets.patterns.activations_forms import quick_gelu_native as quick
from tests.benchmarks import levels, wrong
from tests.benchmarks.case import Case, Point, Workload

FLOPS = {"gelu": 20, "gelu_tanh": 9, "silu": 4, "quick_gelu": 5, "swiglu": 5}  # an element of the forward


def points(device: torch.device) -> Iterator[Point]:
    yield from levels.points(device, COMPONENTS, {"gelu_tanh": "tanh gelu", "quick_gelu": "quick gelu"})


def prepare(point: Point, device: torch.device) -> Workload:
    return levels.prepare(point, device, COMPONENTS, WRONG, lambda name, elements: FLOPS[name] * elements)


WRONG: levels.Wrong = {
    "gelu": {"last tile not written": wrong.cut(gelu_native), "QuickGELU for GELU": quick, "SiLU for GELU": F.silu},
    "gelu_tanh": {
        "last tile not written": wrong.cut(gelu_tanh_native),
        "QuickGELU for GELU": quick,
        "without the cube": lambda x: 0.5 * x * (1 + torch.tanh(0.7978845608028654 * x)),
    },
    "silu": {
        "last tile not written": wrong.cut(silu_native),
        "GELU for SiLU": F.gelu,
        "the sigmoid alone": torch.sigmoid,
    },
    "quick_gelu": {
        "last tile not written": wrong.cut(quick),
        "GELU for QuickGELU": F.gelu,
        "1.702 left out of the quotient": lambda x: F.silu(1.702 * x),
    },
    "swiglu": {
        "last tile not written": wrong.cut(swiglu_native),
        "gate and up exchanged": lambda gate, up: swiglu_native(up, gate),
        "not activated": lambda gate, up: gate * up,
    },
}
CASE = Case(
    question="Which level does an activation need, and how much is left where its own operation is one kernel?",
    check_at={"forward both": [{"part": part, "rows": 64, "columns": 1024} for part in WRONG]},
)

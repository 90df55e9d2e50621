"""LayerNorm, RMSNorm, and LayerNorm with a GELU, at every level: where does climbing on stop to pay?"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from snippets.patterns.normalization import COMPONENTS, layer_norm_native, rms_norm_native
from tests.benchmarks import levels, wrong
from tests.benchmarks.case import Case, Point, Workload


def points(device: torch.device) -> Iterator[Point]:
    names = {"layer_norm": "layer norm", "rms_norm": "rms norm", "layer_norm_gelu": "norm gelu"}
    yield from levels.points(device, COMPONENTS, names)


def prepare(point: Point, device: torch.device) -> Workload:
    return levels.prepare(point, device, COMPONENTS, WRONG)


WRONG: levels.Wrong = {
    "layer_norm": {
        "last tile not written": wrong.cut(layer_norm_native),
        "the mean left in": lambda x, weight, bias: F.rms_norm(x, x.shape[-1:], weight, 1e-5) + bias,
        "no bias": lambda x, weight, bias: layer_norm_native(x, weight, 0 * bias),
    },
    "rms_norm": {
        "last tile not written": wrong.cut(rms_norm_native),
        "eps of a tenth": lambda x, weight: F.rms_norm(x, x.shape[-1:], weight, 0.1),
        "the mean subtracted": lambda x, weight: F.layer_norm(x, x.shape[-1:], weight, None, 1e-5),
    },
    "layer_norm_gelu": {
        "last tile not written": wrong.cut(lambda *given: F.gelu(layer_norm_native(*given))),
        "SiLU for GELU": lambda *given: F.silu(layer_norm_native(*given)),
        "no GELU": layer_norm_native,
    },
}
CASE = Case(
    question="Which level does a norm need: written out, native, TorchScript, compiled, or a kernel of one's own?",
    check_at={"forward both": [{"part": part, "rows": 64, "columns": 1024} for part in WRONG]},
)

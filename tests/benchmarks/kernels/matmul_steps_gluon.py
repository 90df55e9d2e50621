"""The step in Gluon beside cuBLAS and the last step in Triton, in a burst and under sustained load.

A case of its own: the other steps' times stay those of their code.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from snippets.kernels import matmul_steps_descriptors, matmul_steps_gluon
from tests.benchmarks import wrong
from tests.benchmarks.case import Case, Point, Variant, Workload

STEPS = {"cublas": torch.mm, "in-parts": matmul_steps_descriptors.in_parts, "gluon": matmul_steps_gluon.gluon}
SIZES = {"4096": (4096, 4096, 4096), "8192": (8192, 8192, 8192), "wide": (8192, 4096, 14336)}  # rows, inner, columns


def points(device: torch.device) -> Iterator[Point]:
    if device.type == "cpu":
        yield Point(shaped(512, 512, 512), "float32", modes=("calls",), variants=("cublas",))
        return
    for name, sizes in SIZES.items():
        yield Point(shaped(*sizes), "bfloat16", modes=("burst", "sustained"), name=name)


def shaped(rows: int, inner: int, columns: int) -> dict[str, int]:
    return {"rows": rows, "inner": inner, "columns": columns}


def prepare(point: Point, device: torch.device) -> Workload:
    rows, inner, columns = point.shape.values()
    dtype = getattr(torch, point.dtype)
    a, b = (torch.randn(*shape, device=device).to(dtype) for shape in ((rows, inner), (inner, columns)))

    def built(name: str) -> Variant:
        return Variant(lambda: lambda: STEPS[name](a, b))

    def stage_read_too_early() -> Tensor:
        """The second block of K is multiplied twice, and the first never."""
        return torch.mm(torch.cat((a[:, 64:128], a[:, 64:]), 1), torch.cat((b[64:128], b[64:])))

    return Workload(
        variants={name: built(name) for name in STEPS},
        baseline="cublas",
        reference=lambda: {"output": a.double() @ b.double()},
        bytes_read=a.nbytes + b.nbytes,
        bytes_written=rows * columns * dtype.itemsize,
        flops=2 * rows * inner * columns,
        mix="triad",
        wrong={
            "5% too large": lambda baseline: {"output": 1.05 * baseline["output"]},
            "last tile not written": lambda baseline: {"output": wrong.cut(torch.mm)(a, b)},
            "strips of 64 columns exchanged": lambda baseline: {"output": baseline["output"].roll(64, 1)},
            "a stage that is read too early": lambda baseline: {"output": stage_read_too_early()},
        },
    )


LABELS = {
    "cublas": {"label": "cuBLAS (torch.mm)", "short": "cuBLAS", "role": "eager"},
    "in-parts": {"label": "8 epilogue in parts", "short": "8 in parts", "role": "ours"},
    "gluon": {"label": "10 Gluon", "role": "rewrite"},
}
CASE = Case(
    question="Does warp specialization by hand, in Gluon, reach cuBLAS, also at the power limit?",
    check_at={"forward": [{"rows": 256, "inner": 128, "columns": 512}]},
)

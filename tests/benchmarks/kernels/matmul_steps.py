"""A matrix product in Triton and in CUDA C++, step by step, beside cuBLAS."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from snippets.kernels import matmul_steps, matmul_steps_cuda
from tests.benchmarks import wrong
from tests.benchmarks.bounds import bound
from tests.benchmarks.case import Case, Point, Variant, Workload

STEPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cublas": torch.mm,
    "naive-tile": matmul_steps.naive,
    **{step.__name__.replace("_", "-"): step for step in matmul_steps.STEPS[1:]},
    "cuda-naive": matmul_steps_cuda.naive,
    "cuda-shared": matmul_steps_cuda.shared_memory,
    "cuda-wgmma": matmul_steps_cuda.tensor_cores,
}
SLOW = "naive-tile", "cuda-naive"  # half a second a call at the larger size


def points(device: torch.device) -> Iterator[Point]:
    """Square matrices in a burst. A CPU has the library alone."""
    if device.type == "cpu":
        yield Point(square(512), "float32", modes=("calls",), variants=("cublas",))
        return
    yield Point(square(4096), "bfloat16", modes=("burst",), name="4096")
    yield Point(square(8192), "bfloat16", modes=("burst",), name="8192",
                variants=tuple(name for name in STEPS if name not in SLOW))  # fmt: skip


def square(size: int) -> dict[str, int]:
    return {"rows": size, "inner": size, "columns": size}


def prepare(point: Point, device: torch.device) -> Workload:
    rows, inner, columns = point.shape.values()
    dtype = getattr(torch, point.dtype)
    a, b = (torch.randn(*shape, device=device).to(dtype) for shape in ((rows, inner), (inner, columns)))

    def without_last_tile() -> Tensor:
        """The loop over K ends one tile early."""
        return a[:, :-64] @ b[:-64]

    return Workload(
        variants={name: Variant(partial(partial, step, a, b)) for name, step in STEPS.items()},
        baseline="cublas",
        reference=lambda: {"output": a.double() @ b.double()},
        bytes_read=a.nbytes + b.nbytes,
        bytes_written=rows * columns * dtype.itemsize,
        flops=2 * rows * inner * columns,
        mix="triad",
        wrong={
            "5% too large": lambda baseline: {"output": 1.05 * baseline["output"]},
            "last tile not written": lambda baseline: {"output": wrong.cut(torch.mm)(a, b)},
            "tiles of two rows exchanged": lambda baseline: {"output": baseline["output"].roll(128, 0)},
            "a K loop that ends early": lambda baseline: {"output": without_last_tile()},
        },
    )


# What 132 tiles of 128 x 256 need of a and b at 4096 x 4096 x 4096, row by row: 9 rows of tiles and all columns.
wave_at_4096 = bound("MB", "(9 * 128 + size) * size * width", size=4096, width=2)

LABELS = {
    "cublas": {"label": "cuBLAS (torch.mm)", "short": "cuBLAS", "role": "eager"},
    "naive-tile": {"label": "1 naive", "role": "rewrite"},
    "tiles": {"label": "2 larger tiles", "short": "2 tiles", "role": "rewrite"},
    "tensor-cores": {"label": "3 tensor cores", "role": "rewrite"},
    "pipelined": {"label": "4 pipeline", "role": "rewrite"},
    "grouped": {"label": "5 L2 order", "role": "rewrite"},
    "descriptors": {"label": "6 TMA descriptors", "short": "6 TMA", "role": "rewrite"},
    "persistent": {"label": "7 persistent", "role": "rewrite"},
    "in-parts": {"label": "8 epilogue in parts", "short": "8 in parts", "role": "ours"},
    "specialised": {"label": "9 warp specialization", "short": "9 specialized", "role": "rewrite-2"},
    "cuda-naive": {"label": "CUDA C++, naive", "role": "other-2"},
    "cuda-shared": {"label": "CUDA C++, shared memory", "short": "CUDA shared", "role": "other-2"},
    "cuda-wgmma": {"label": "CUDA C++, tensor cores", "short": "CUDA wgmma", "role": "other-2"},
}
CASE = Case(
    question="What does each step of a matrix product in Triton gain, and how close to cuBLAS does the last one come?",
    check_at={"forward": [{"rows": 256, "inner": 128, "columns": 512}]},
)

"""Where each bound rules: a negation from kilobytes to a gigabyte, and a matrix product from one row to a square."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from tests.benchmarks.bounds import bound, ceiling
from tests.benchmarks.case import Case, Point, Variant, Workload


def points(device: torch.device) -> Iterator[Point]:
    """Elements of the negated tensor, and rows of the product's left matrix: a power of two apart or more."""
    if device.type == "cpu":
        for elements in (2**12, 2**17, 2**23):
            yield Point({"elements": elements}, "float32", modes=("calls",))
        for rows in (1, 8, 64, 512):
            yield Point({"rows": rows, "inner": 1024, "columns": 1024}, "float32", modes=("calls",))
        return
    for exponent in range(12, 30):
        yield Point({"elements": 2**exponent}, "bfloat16")
    for exponent in range(14):
        yield Point({"rows": 2**exponent, "inner": 8192, "columns": 8192}, "bfloat16")


WRONG = {
    "5% too large": lambda right: {"output": 1.05 * right["output"]},
    "last tile not written": lambda right: {"output": F.pad(right["output"][..., :-128], (0, 128))},
}


def prepare(point: Point, device: torch.device) -> Workload:
    """One op of PyTorch's; the question is the machine's."""
    shape, dtype = point.shape, getattr(torch, point.dtype)
    return (negation if "elements" in shape else product)(**shape, dtype=dtype, device=device)


def negation(elements: int, dtype: torch.dtype, device: torch.device) -> Workload:
    x = torch.randn(elements, device=device).to(dtype)
    return Workload(
        variants={
            "negate": Variant(lambda: lambda: -x)
        },  # a kernel that reads and writes; clone may be the copy engine
        baseline="negate",
        reference=lambda: {"output": -x.double()},
        bytes_read=x.nbytes,
        bytes_written=x.nbytes,
        flops=0,
        wrong=WRONG | {"not negated": lambda right: {"output": -right["output"]}},
    )


def product(rows: int, inner: int, columns: int, dtype: torch.dtype, device: torch.device) -> Workload:
    a = torch.randn(rows, inner, device=device).to(dtype)
    b = torch.randn(inner, columns, device=device).to(dtype)
    return Workload(
        variants={"product": Variant(lambda: lambda: a @ b)},
        baseline="product",
        reference=lambda: {"output": a.double() @ b.double()},
        bytes_read=a.nbytes + b.nbytes,
        bytes_written=rows * columns * dtype.itemsize,
        flops=2 * rows * inner * columns,
        mix="read",
        wrong=WRONG | {"a tenth of the sum left out": lambda right: {"output": a[:, inner // 10 :] @ b[inner // 10 :]}},
    )


@bound("", matrix=ceiling("bfloat16", "burst"), read=ceiling("read"))
def ridge_of_weights(matrix: float, read: float) -> float:
    """The rows from which on a layer of bf16 weights, each two bytes and two operations a row, is bound by compute."""
    return matrix / read


CHECK_AT = {"forward": [{"elements": 4096}, {"rows": 8, "inner": 1024, "columns": 1024}]}
LABELS = {
    "negate": {"label": "negation", "role": "other"},
    "product": {"label": "matrix product", "role": "other"},
}
POINTS = {  # as pages name them
    "1 row": "forward 1x8192x8192 bfloat16 device",
    "16 rows": "forward 16x8192x8192 bfloat16 device",
    "64 rows": "forward 64x8192x8192 bfloat16 device",
    "128 rows": "forward 128x8192x8192 bfloat16 device",
    "256 rows": "forward 256x8192x8192 bfloat16 device",
    "512 rows": "forward 512x8192x8192 bfloat16 device",
    "1024 rows": "forward 1024x8192x8192 bfloat16 device",
    "2048 rows": "forward 2048x8192x8192 bfloat16 device",
    "8192 rows": "forward 8192x8192x8192 bfloat16 device",
    "small negation": "forward 4096 bfloat16 device",
    "large negation": "forward 33554432 bfloat16 device",
}
CASE = Case(
    name="validation/roofline",
    question="At which size and at which intensity does which bound rule?",
    points=points,
    prepare=prepare,
)

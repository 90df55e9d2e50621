"""Where each bound rules: a negation from kilobytes to a gigabyte, and a matrix product from one row to a square."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from tests.benchmarks.bounds import bound, ceiling, h100
from tests.benchmarks.case import Case, Point, Variant, Workload

NEGATIONS = {2**12: "small negation", 2**25: "large negation"}  # those that pages name


def points(device: torch.device) -> Iterator[Point]:
    """Elements of the negated tensor, and rows of the product's left matrix: a power of two apart or more."""
    if device.type == "cpu":
        for elements in (2**12, 2**17, 2**23):
            yield Point({"elements": elements}, "float32", modes=("calls",))
        for rows in (1, 8, 64, 512):
            yield Point({"rows": rows, "inner": 1024, "columns": 1024}, "float32", modes=("calls",))
        return
    for exponent in range(12, 30):
        yield Point({"elements": 2**exponent}, "bfloat16", name=NEGATIONS.get(2**exponent, ""))
    for rows in (2**exponent for exponent in range(14)):
        shape, name = {"rows": rows, "inner": 8192, "columns": 8192}, f"{rows} row{'s' * (rows > 1)}"
        yield Point(shape, "bfloat16", name=name)


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


COPY = ceiling("copy", case="validation/roofline")
# The rows from which on a layer of bf16 weights, each two bytes and two operations a row, is bound by compute.
ridge_of_weights = bound("", "matrix / read", matrix=ceiling("bfloat16", "burst"), read=ceiling("read"))
# The bytes of the matrix in bf16.
matrix_bytes = bound("MB", "inner * columns * width", inner=8192, columns=8192, width=2)
# The ridge point of bf16 products, by the datasheet's figures.
ridge_by_datasheet = bound("FLOP/byte", "matrix / bandwidth", matrix=h100("bfloat16"), bandwidth=h100("bandwidth"))
# The intensity of a negation in bf16: one operation for an element read and written.
intensity_of_negation = bound("FLOP/byte", "1 / (2 * width)", width=2)
# The ridge point of bf16 products, by the rates measured in a burst.
ridge_in_burst = bound(
    "FLOP/byte", "matrix / memory", matrix=ceiling("bfloat16", "burst", case="validation/roofline"), memory=COPY
)
# The ridge point of the plain fp32 units, by the datasheet's figures.
ridge_of_fp32 = bound("FLOP/byte", "flops / memory", flops=h100("float32"), memory=h100("bandwidth"))
# The intensity of LayerNorm and GELU in bf16.
intensity_of_layer_norm_gelu = bound("FLOP/byte", "operations / (2 * width)", operations=26, width=2)
# What moving 4096 elements takes at the rate of a copy.
small_moved = bound("ns", "2 * elements * width / copy", elements=4096, width=2, copy=COPY)

LABELS = {"negate": {"label": "negation", "role": "other"}, "product": {"label": "matrix product", "role": "other"}}
CASE = Case(
    question="At which size and at which intensity does which bound rule?",
    check_at={"forward": [{"elements": 4096}, {"rows": 8, "inner": 1024, "columns": 1024}]},
)

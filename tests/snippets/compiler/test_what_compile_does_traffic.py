"""Eager's traffic is what the page counts."""

import torch

from snippets.compiler.what_compile_does import unit_rows
from snippets.compiler.what_compile_does_traffic import Traffic

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def make_inputs(rows: int = 32, columns: int = 256, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = (rows, columns), (rows, columns), (columns,)
    return [torch.randn(shape, device=DEVICE).to(dtype) for shape in shapes]


def test_eager_traffic_is_what_the_page_counts():
    rows, columns, width = 32, 256, 4
    inputs = make_inputs(rows, columns)
    with Traffic() as traffic:
        unit_rows(*inputs)
    whole, row, column = rows * columns * width, columns * width, rows * width
    assert traffic.operations == [
        ("aten.add.Tensor", whole + row, whole),
        ("aten.relu.default", whole, whole),
        ("aten.pow.Tensor_Scalar", whole, whole),
        ("aten.add.Tensor", 2 * whole, whole),
        ("aten.linalg_vector_norm.default", whole, column),
        ("aten.div.Tensor", whole + column, whole),
    ]

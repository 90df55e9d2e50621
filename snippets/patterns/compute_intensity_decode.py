"""Products with weights of one byte: converted before the product, or inside of it. Copy this file; it needs torch.

The weights are int8 or fp8 (e4m3) with a scale for each output column; what is multiplied with them stays bf16 or fp16.
"""

import os

import torch
import torch.nn.functional as F
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # no Triton on this platform: the ways in plain PyTorch remain
    triton = None

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


# --8<-- [start:quantised]
def quantised(weight: Tensor, dtype: torch.dtype = torch.int8) -> tuple[Tensor, Tensor]:
    """Weights of (columns, inner) in one byte each, and the scale of each column in fp32."""
    scale = weight.abs().amax(-1).float().clamp(min=1e-12) / LARGEST[dtype]
    small = weight.float() / scale[:, None]
    return (small.round() if dtype == torch.int8 else small).to(dtype), scale


def restored(small: Tensor, scale: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """The weights again, as far as one byte keeps them."""
    return (small.to(torch.float32) * scale[:, None]).to(dtype)


# --8<-- [end:quantised]


# --8<-- [start:converted]
def converted(x: Tensor, small: Tensor, scale: Tensor) -> Tensor:
    """In plain PyTorch: one kernel converts all weights and writes them, the product reads them again."""
    return (F.linear(x, small.to(x.dtype)) * scale).to(x.dtype)


# --8<-- [end:converted]


# --8<-- [start:kernel]
if triton is not None:

    @triton.jit
    def _product(
        x, small, scale, y, rows, inner, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr
    ):
        """All rows of x with a tile of columns: each weight is read by one program only."""
        column = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)
        row, term = tl.arange(0, ROWS), tl.arange(0, INNER)
        weights = small + column[:, None] * inner + term[None, :]
        tokens = x + row[None, :] * inner + term[:, None]
        sums = tl.zeros((COLUMNS, ROWS), tl.float32)
        for start in range(0, inner, INNER):
            tile = tl.load(weights + start).to(x.dtype.element_ty)  # one byte from memory, two in registers
            sums = tl.dot(tile, tl.load(tokens + start, mask=row[None, :] < rows, other=0.0), sums)
        sums *= tl.load(scale + column)[:, None]
        tl.store(y + row[None, :] * columns + column[:, None], sums.to(y.dtype.element_ty), mask=row[None, :] < rows)

    LAUNCHES = [
        triton.Config({"COLUMNS": columns, "INNER": inner}, num_warps=4, num_stages=stages)
        for columns, inner, stages in ((64, 128, 4), (64, 128, 6), (64, 256, 3), (32, 256, 4), (32, 128, 6))
    ]
    if os.environ.get("TRITON_INTERPRET") == "1":  # runs anything, and times nothing
        LAUNCHES = LAUNCHES[:1]
    _tuned = triton.autotune(LAUNCHES, key=["inner", "columns", "ROWS"])(_product)


def in_the_product(x: Tensor, small: Tensor, scale: Tensor) -> Tensor:
    """Weights are read as one byte each and converted in registers. At most 64 rows."""
    (rows, inner), (columns, _) = x.shape, small.shape
    if rows > 64 or inner % 256 or columns % 64:
        raise ValueError(
            f"expected at most 64 rows, inner in steps of 256 and columns of 64: {rows}, {inner}, {columns}"
        )
    if not (x.is_contiguous() and small.is_contiguous() and scale.is_contiguous()) or small.shape[1] != inner:
        raise ValueError("expected contiguous x of (rows, inner), weights of (columns, inner) and scale of (columns,)")
    y = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    padded = max(16, triton.next_power_of_2(rows))  # the tensor cores' smallest tile
    with torch.cuda.device_of(x):
        _tuned[lambda launch: (columns // launch["COLUMNS"],)](x, small, scale, y, rows, inner, columns, ROWS=padded)
    return y


# --8<-- [end:kernel]

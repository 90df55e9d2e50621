"""A matmul of rows that are quantized to fp8."""

import torch
import torch.nn.functional as F
from torch import Tensor

LARGEST = torch.finfo(torch.float8_e4m3fn).max  # 448


# --8<-- [start:fp8]
def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of x in fp8 (e4m3), each over its scale. (rows, columns) -> the same, and (rows, 1) in fp32."""
    scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / LARGEST
    return (x.float() / scale).to(torch.float8_e4m3fn), scale


def product_of_fp8(a: Tensor, scale_a: Tensor, b: Tensor, scale_b: Tensor) -> Tensor:
    """a @ b.T of quantised rows, in bf16. Both sizes of b are multiples of 16, as the tensor cores want them."""
    by_row = F.ScalingType.RowWise
    return F.scaled_mm(a, b.t(), scale_a, by_row, scale_b.t(), by_row, output_dtype=torch.bfloat16, use_fast_accum=True)


def linear_in_fp8(a: Tensor, b: Tensor) -> Tensor:
    """a @ b.T, both quantised in the call."""
    return product_of_fp8(*quantised(a), *quantised(b))


# --8<-- [end:fp8]

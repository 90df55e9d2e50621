"""A matmul of fp8 is that of the quantized rows."""

import pytest
import torch

from snippets.patterns.mixed_precision import DEVICE
from snippets.patterns.mixed_precision_fp8 import linear_in_fp8, quantised
from snippets.validation.equivalence import check

ON_FP8 = not torch.cuda.is_available() or torch.cuda.get_device_capability() >= (8, 9)


@pytest.mark.skipif(not ON_FP8, reason="tensor cores read fp8 from compute capability 8.9 on")
def test_a_product_of_fp8_is_that_of_the_quantised_rows():
    a, b = (torch.randn(size, 128, device=DEVICE, dtype=torch.bfloat16) for size in (64, 96))
    (qa, sa), (qb, sb) = quantised(a), quantised(b)
    assert sa.shape == (64, 1) and sb.shape == (96, 1) and qa.dtype == torch.float8_e4m3fn
    exact = (qa.double() * sa.double()) @ (qb.double() * sb.double()).t()
    check({"y": linear_in_fp8(a, b)}, {"y": exact.bfloat16()}, {"y": exact})


def test_each_row_has_its_scale_and_a_row_of_zeros_none_that_divides_by_zero():
    x = torch.randn(3, 64) * torch.tensor([[1.0], [1e4], [0.0]])
    q, scale = quantised(x)
    assert q.float().abs().amax(-1).tolist() == [448, 448, 0]
    back = q.float() * scale
    assert ((back - x).norm(dim=-1)[:2] / x.norm(dim=-1)[:2] < 0.04).all() and not back[2].any()

"""Weights of one byte give the product of what one byte keeps, converted before the product or inside of it."""

import pytest
import torch
import torch.nn.functional as F

from snippets.patterns.compute_intensity_decode import converted, in_the_product, quantised, restored
from snippets.validation.equivalence import check

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = (torch.bfloat16, torch.float16) if DEVICE == "cuda" else (torch.float16,)  # interpreted, a bf16 dot is wrong
KINDS = (torch.int8, torch.float8_e4m3fn)


def made(rows, inner=512, columns=192, dtype=torch.float16, kind=torch.int8):
    torch.manual_seed(0)
    x = torch.randn(rows, inner, device=DEVICE).to(dtype)
    weight = torch.randn(columns, inner, device=DEVICE) * torch.linspace(0.01, 0.1, columns, device=DEVICE)[:, None]
    return x, *quantised(weight, kind), weight


@pytest.mark.parametrize("kind", KINDS)
def test_a_byte_keeps_the_weights_and_each_column_has_its_scale(kind):
    _, small, scale, weight = made(1, kind=kind)
    assert small.dtype == kind and small.element_size() == 1 and scale.shape == (192,)
    error = (restored(small, scale, torch.float32) - weight).norm(dim=-1) / weight.norm(dim=-1)
    assert (error < (0.012 if kind == torch.int8 else 0.04)).all()
    assert (small.float().abs().amax(-1) == (127 if kind == torch.int8 else 448)).all()


def test_a_column_of_zeros_stays_zero():
    small, scale = quantised(torch.zeros(2, 8))
    assert not restored(small, scale).any() and scale.isfinite().all()


@pytest.mark.parametrize("rows", (1, 5, 16, 64))
@pytest.mark.parametrize("dtype", DTYPES)
def test_both_ways_agree_with_float64(rows, dtype):
    x, small, scale, _ = made(rows, dtype=dtype)
    exact = F.linear(x.double(), small.double()) * scale.double()
    plain = F.linear(x, restored(small, scale, dtype))
    for way in (converted, in_the_product):
        check({"y": way(x, small, scale)}, {"y": plain}, {"y": exact})


@pytest.mark.skipif(DEVICE != "cuda" or torch.cuda.get_device_capability() < (8, 9), reason="fp8 in a kernel")
def test_fp8_in_the_product():
    x, small, scale, _ = made(16, dtype=torch.bfloat16, kind=torch.float8_e4m3fn)
    exact = F.linear(x.double(), small.double()) * scale.double()
    plain = F.linear(x, restored(small, scale))
    check({"y": in_the_product(x, small, scale)}, {"y": plain}, {"y": exact})


def test_what_the_kernel_cannot_do_it_refuses():
    x, small, scale, _ = made(4)
    for wrong in ((made(65)[0], small, scale), (x[:, :300].contiguous(), small[:, :300].contiguous(), scale)):
        with pytest.raises(ValueError, match="at most 64 rows"):
            in_the_product(*wrong)
    with pytest.raises(ValueError, match="contiguous"):
        in_the_product(x, small.t().contiguous().t(), scale)

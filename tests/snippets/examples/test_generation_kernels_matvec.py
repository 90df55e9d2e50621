"""The kernel's product is the plain one, with each kind of weights."""

import pytest
import torch
import torch.nn.functional as F

from snippets.examples.generation_kernels import matvec
from snippets.examples.generation_weights import quantized, restored
from tests.snippets.examples.test_generation import HERE

KEPT = (None, torch.int8, torch.float8_e4m3fn, torch.uint8)


@pytest.mark.parametrize("dtype", KEPT)
@pytest.mark.parametrize(("rows", "columns"), ((10, 384), (24, 2048)))
@pytest.mark.parametrize("gated", (False, True))
def test_matvec(rows: int, columns: int, gated: bool, dtype: torch.dtype | None) -> None:
    torch.manual_seed(0)
    weight, x, norm, residual = (
        torch.randn(*s, device=HERE) for s in (((1 + gated) * rows, columns), (columns,), (columns,), (rows,))
    )
    matrix = quantized(weight, dtype)
    y = (restored(matrix, torch.float64) @ F.rms_norm(x, x.shape, norm, 1e-5).double()).float()
    y = residual + (F.silu(y[:rows]) * y[rows:] if gated else y)
    found = matvec(matrix, x, torch.empty_like(residual), norm=norm, eps=1e-5, residual=residual, gated=gated)
    torch.testing.assert_close(found, y, rtol=1e-4, atol=1e-3)

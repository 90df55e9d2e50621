"""snippets/compiler/custom_kernels_cpp.py: CUDA C++ computes the same, and compiles without a GPU where NVRTC is."""

import pytest
import torch
import torch.nn.functional as F

from snippets.compiler import custom_kernels_cpp as page
from snippets.compiler.custom_kernels import EPS
from snippets.validation.equivalence import compare

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="a kernel for a GPU")


@pytest.mark.skipif(torch.cuda.is_available(), reason="what is said without a GPU")
def test_without_a_gpu_it_says_so(capsys):
    page.main()
    assert capsys.readouterr().out.startswith("no CUDA GPU")


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0)])
def test_it_compiles_for_a_gpu_that_is_not_here(capability):
    pytest.importorskip("cuda.core")
    assert page.compiled(capability).code[:4] == b"\x7fELF"


@needs_gpu
@pytest.mark.parametrize("columns", [1, 31, 1000, 4096])
def test_it_computes_the_norm(columns):
    x, w = torch.randn(7, columns, device="cuda"), torch.rand(columns, device="cuda") + 0.5
    exact = F.rms_norm(x.double(), w.shape, w.double(), EPS)
    assert compare(page.rms_cpp(x, w, EPS), F.rms_norm(x, w.shape, w, EPS), exact).holds


@needs_gpu
def test_opcheck_passes():
    x, w = torch.randn(7, 64, device="cuda"), torch.rand(64, device="cuda") + 0.5
    torch.library.opcheck(page.rms_cpp, (x, w, EPS))

"""cuBLASLt, called beside torch: candidates are right on a GPU, and without one the script says what it expects."""

import pytest
import torch

from snippets.validation.tflops_cublas import Matmul

ON_NVIDIA = torch.cuda.is_available() and not torch.version.hip


@pytest.mark.skipif(ON_NVIDIA, reason="there is one")
def test_without_a_gpu_it_says_what_it_expects(script):
    done = script("snippets.validation.tflops_cublas")
    assert (done.returncode, done.stdout) == (0, "cuBLASLt: expected an NVIDIA GPU, found none\n")
    t = torch.zeros(8, 8)
    with pytest.raises(RuntimeError, match="libcublasLt: expected it loaded by torch, found none"):
        Matmul(t, t, t, transposed=False)


@pytest.mark.skipif(not ON_NVIDIA, reason="cuBLASLt needs an NVIDIA GPU")
@pytest.mark.parametrize("transposed", [False, True])
def test_each_candidate_computes_the_product(transposed):
    a, b = (torch.randn(512, 512, device="cuda").bfloat16() for _ in range(2))
    right, out = (a.double() @ (b.T if transposed else b).double()), torch.empty_like(a)
    matmul = Matmul(a, b, out, transposed)
    candidates = matmul.candidates(20)
    assert candidates
    for candidate in candidates:
        out.fill_(float("nan"))
        matmul.run(candidate)
        assert (out.double() - right).norm() < 0.005 * right.norm()


@pytest.mark.skipif(not ON_NVIDIA, reason="cuBLASLt needs an NVIDIA GPU")
def test_a_status_of_the_library_is_an_error():
    t = torch.zeros(64, 64, device="cuda", dtype=torch.bfloat16)
    matmul = Matmul(t, t, t, transposed=False)
    with pytest.raises(RuntimeError, match="cublasLtMatmulDescCreate: expected status 0, got 7"):
        matmul("MatmulDescCreate", None, 68, 0)

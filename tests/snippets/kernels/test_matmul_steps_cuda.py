"""The steps in CUDA C++: right on an H100, refused elsewhere. test_matmul_steps_code.py looks at their machine code."""

import pytest
import torch

from snippets.kernels import matmul_steps_cuda
from tests.kernels import cuda
from tests.snippets.kernels.test_matmul_steps import product

STEPS = matmul_steps_cuda.naive, matmul_steps_cuda.shared_memory, matmul_steps_cuda.tensor_cores
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9


@pytest.mark.skipif(not HOPPER, reason="needs an H100 or H200")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("shape", ((128, 64, 256), (17 * 128, 320, 768)), ids=str)
def test_it_is_right(step, shape):
    for _ in range(3):  # whose results would differ if a tile were overwritten too early
        product(step, *shape, torch.bfloat16)


@pytest.mark.parametrize("step", STEPS)
def test_what_it_does_not_take(step):
    a, b = (torch.zeros(*shape, dtype=torch.bfloat16) for shape in ((128, 64), (64, 256)))
    with pytest.raises(ValueError, match="expected a tensor on an NVIDIA GPU, got one on cpu"):
        step(a, b)
    with pytest.raises(ValueError, match="expected M, N, K that are multiples of"):
        step(a[:127], b)
    with pytest.raises(ValueError, match="a: expected a contiguous matrix in"):
        step(a.half(), b.half())


@cuda.compiles
def test_an_error_of_the_compiler_is_shown(tmp_path, monkeypatch):
    source = tmp_path / "matmul_steps.cu"
    source.write_text("int broken")
    monkeypatch.setattr(matmul_steps_cuda, "_SOURCE", source)
    with pytest.raises(RuntimeError, match=r"matmul_steps\.cu\(1\): error"):
        matmul_steps_cuda._cubin("sm_90a", ("BROKEN",))


@cuda.needs_nvcc
def test_nvcc_compiles_it_as_it_stands(tmp_path):
    cuda.compile_by_nvcc(matmul_steps_cuda._SOURCE, tmp_path)

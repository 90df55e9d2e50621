"""Three steps of a matrix product in CUDA C++: matmul_steps.cu, compiled by NVRTC and launched from PyTorch.

    c = steps.tensor_cores(a, b)  # a (M, K), b (K, N), both contiguous, bf16

It needs cuda-bindings and NVRTC, which torch's CUDA builds bring, and for the tensor cores an H100 or H200.
"""

# --8<-- [start:launch]
import ctypes
import functools
from pathlib import Path

import torch
from torch import Tensor

from snippets.kernels.matmul_steps_tiles import checked

SHARED = 4 * (128 + 256) * 64 * 2  # bytes of the tiles that the tensor cores' step keeps
_SOURCE = Path(__file__).with_name("matmul_steps.cu")


@functools.cache
def _cubin(arch: str, macros: tuple[str, ...] = ()) -> bytes:
    """Machine code for one kind of GPU; a GPU need not be there."""
    from cuda.bindings import nvrtc

    options = [f"-arch={arch}", "-std=c++17", "-lineinfo", *(f"-D{macro}" for macro in macros)]
    program = _done(*nvrtc.nvrtcCreateProgram(_SOURCE.read_bytes(), _SOURCE.name.encode(), 0, [], []))
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    if error:
        log = bytes(_done(*nvrtc.nvrtcGetProgramLogSize(program)))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.decode())
    cubin = bytes(_done(*nvrtc.nvrtcGetCUBINSize(program)))  # to be written over
    _done(*nvrtc.nvrtcGetCUBIN(program, cubin))
    return cubin


@functools.cache
def _function(name: str, shared: int, device: int):
    from cuda.bindings import driver

    with torch.cuda.device(device):
        torch.cuda.current_stream().synchronize()  # by now there is a context
        library = _done(*driver.cuLibraryLoadData(_cubin("sm_90a"), [], [], 0, [], [], 0))
        function = _done(*driver.cuKernelGetFunction(_done(*driver.cuLibraryGetKernel(library, name.encode()))))
        more = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _done(*driver.cuFuncSetAttribute(function, more, shared))
    return function


def _launch(name: str, a: Tensor, b: Tensor, BM: int, BN: int, BK: int, shared: int = 0) -> Tensor:
    """256 threads for each BM x BN elements of the result."""
    from cuda.bindings import driver

    c = checked(a, b, BM, BN, BK, (torch.bfloat16,))
    if not a.is_cuda:
        raise ValueError(f"a: expected a tensor on an NVIDIA GPU, got one on {a.device}")
    function = _function(name, shared, a.get_device())
    values = a.data_ptr(), b.data_ptr(), c.data_ptr(), *c.shape, len(b)
    arguments = values, 3 * (ctypes.c_void_p,) + 3 * (ctypes.c_int,)
    stream, blocks = torch.cuda.current_stream(a.device).cuda_stream, c.numel() // (BM * BN)
    with torch.cuda.device(a.device):
        _done(*driver.cuLaunchKernel(function, blocks, 1, 1, 256, 1, 1, shared, stream, arguments, 0))
    return c


def _done(error: int, *results: object) -> object:
    if error:
        raise RuntimeError(f"CUDA: {getattr(error, 'name', error)}")
    return results[0] if results else None


# --8<-- [end:launch]


# --8<-- [start:steps]
def naive(a: Tensor, b: Tensor) -> Tensor:
    return _launch("naive", a, b, 8, 32, 1)


def shared_memory(a: Tensor, b: Tensor) -> Tensor:
    return _launch("shared_memory", a, b, 128, 128, 16)


def tensor_cores(a: Tensor, b: Tensor) -> Tensor:
    return _launch("tensor_cores", a, b, 128, 256, 64, shared=SHARED)


# --8<-- [end:steps]


def main() -> None:
    """Check each step on a GPU; without one, say so."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        print("matmul_steps.cu: expected an H100 or H200, found none")
        return
    a, b = (torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for step in (naive, shared_memory, tensor_cores):
        torch.testing.assert_close(step(a, b), a @ b, rtol=2**-7, atol=0.25)
        print(f"{step.__name__}: as torch.mm")


if __name__ == "__main__":
    main()

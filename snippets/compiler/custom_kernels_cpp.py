"""The same kernel in CUDA C++, compiled at run time without a CUDA toolkit, and registered in the same way.

It needs a GPU and cuda-core (1.2; it brings NVIDIA's run-time compiler NVRTC). Run
`python -m snippets.compiler.custom_kernels_cpp`.
"""

import functools

import torch
from torch import Tensor
from torch.library import custom_op, opcheck

SOURCE = r"""
extern "C" __global__ void rms(const float* x, const float* w, float* y, int columns, float eps) {
    __shared__ float partial[32];
    const float* row = x + (long long)blockIdx.x * columns;
    float squares = 0.0f;
    for (int c = threadIdx.x; c < columns; c += blockDim.x) squares += row[c] * row[c];
    for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(0xffffffff, squares, step);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = squares;
    __syncthreads();
    squares = threadIdx.x % 32 < blockDim.x / 32 ? partial[threadIdx.x % 32] : 0.0f;
    for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(0xffffffff, squares, step);
    float scale = rsqrtf(squares / columns + eps);
    for (int c = threadIdx.x; c < columns; c += blockDim.x)
        y[(long long)blockIdx.x * columns + c] = row[c] * scale * w[c];
}
"""


# --8<-- [start:compiled]
@functools.cache
def compiled(capability: tuple[int, int]):
    """The kernel for one kind of GPU, by NVRTC: no nvcc and no toolkit."""
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(std="c++17", arch=f"sm_{capability[0]}{capability[1]}")
    return Program(SOURCE, code_type="c++", options=options).compile("cubin", name_expressions=("rms",))


@functools.cache
def kernel(device: int):
    return compiled(torch.cuda.get_device_capability(device)).get_kernel("rms")


class Current:
    """PyTorch's current stream on a device, as cuda.core asks for one."""

    def __init__(self, device: torch.device):
        self.device = device

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, torch.cuda.current_stream(self.device).cuda_stream


# --8<-- [end:compiled]


# --8<-- [start:registered]
@custom_op("ridgepoint::rms_cpp", mutates_args=(), device_types="cuda")
def rms_cpp(x: Tensor, w: Tensor, eps: float) -> Tensor:
    """x (rows, columns) and w (columns): fp32, contiguous, on one GPU."""
    import numpy
    from cuda.core import Device, LaunchConfig, launch

    y = torch.empty_like(x)
    device = Device(x.device.index)
    device.set_current()  # cuda.core keeps its own idea of the current device
    stream = device.create_stream(Current(x.device))
    config = LaunchConfig(grid=x.shape[0], block=256)
    sizes = numpy.int32(x.shape[1]), numpy.float32(eps)
    launch(stream, config, kernel(x.device.index), x.data_ptr(), w.data_ptr(), y.data_ptr(), *sizes)
    return y


@rms_cpp.register_fake
def _(x: Tensor, w: Tensor, eps: float) -> Tensor:
    return torch.empty_like(x)


# --8<-- [end:registered]


def main() -> None:
    """Compile it, hold it against PyTorch, and ask opcheck."""
    if not torch.cuda.is_available():
        print("no CUDA GPU: this kernel is compiled for the one that runs it")
        return
    from snippets.compiler.custom_kernels import EPS, block, outcome, rms_custom

    x, w = torch.randn(1000, 3000, device="cuda"), torch.rand(3000, device="cuda") + 0.5
    exact = torch.nn.functional.rms_norm(x.double(), (3000,), w.double(), EPS)
    for name, norm in (("CUDA C++", rms_cpp), ("Triton", rms_custom)):
        print(f"{name:10} largest error against float64 {(norm(x, w, EPS) - exact).abs().max().item():.1e}")
    in_a_block = torch.compile(block, fullgraph=True)(x, x, w, rms_cpp)
    print("in a compiled block, the same:", torch.equal(in_a_block, torch.compile(block)(x, x, w, rms_cpp)))
    for name, result in opcheck(rms_cpp, (x, w, EPS), raise_exception=False).items():
        print(f"{name:34} {outcome(result)}")


if __name__ == "__main__":
    main()

"""A matrix product in Triton, from naive lines to cuBLAS: one function for each step, and each step is one idea.

    c = steps.persistent(a, b)  # a (M, K), b (K, N), both contiguous, bf16 or fp16; c as a @ b

Sizes are multiples of the tile, to keep the lines few. kernels/matmul.py is the kernel to use: any sizes, any strides.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from snippets.kernels.matmul_steps_descriptors import descriptors, in_parts, persistent, specialised
from snippets.kernels.matmul_steps_tiles import checked, place


# --8<-- [start:tile]
@triton.jit
def tile_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, TENSOR_CORES: tl.constexpr,
):  # fmt: skip
    row, col = place(tl.program_id(0), M, N, BM, BN, GROUP)
    rows, cols = row + tl.arange(0, BM), col + tl.arange(0, BN)
    c = tl.zeros([BM, BN], tl.float32)
    for k in range(0, K, BK):
        ks = k + tl.arange(0, BK)
        a = tl.load(a_ptr + rows[:, None] * K + ks[None, :])
        b = tl.load(b_ptr + ks[:, None] * N + cols[None, :])
        if not TENSOR_CORES:
            a, b = a.to(tl.float32), b.to(tl.float32)
        c = tl.dot(a, b, c, input_precision="ieee")
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], c.to(c_ptr.dtype.element_ty))


# --8<-- [end:tile]


# --8<-- [start:by-pointers]
def by_pointers(
    a: Tensor, b: Tensor, BM: int, BN: int, BK: int, group: int = 1, tensor_cores: bool = True, **options: int
) -> Tensor:
    c = checked(a, b, BM, BN, BK)
    (M, N), K = c.shape, len(b)
    tile_kernel[(M // BM * (N // BN),)](a, b, c, M, N, K, BM, BN, BK, group, tensor_cores, **options)
    return c


# --8<-- [end:by-pointers]


# --8<-- [start:naive]
def naive(a: Tensor, b: Tensor) -> Tensor:
    return by_pointers(a, b, 16, 16, 16, tensor_cores=False, num_warps=1, num_stages=1)


# --8<-- [end:naive]


# --8<-- [start:tiles]
def tiles(a: Tensor, b: Tensor) -> Tensor:
    return by_pointers(a, b, 128, 128, 16, tensor_cores=False, num_warps=8, num_stages=1)


# --8<-- [end:tiles]


# --8<-- [start:tensor-cores]
def tensor_cores(a: Tensor, b: Tensor) -> Tensor:
    return by_pointers(a, b, 128, 256, 64, num_warps=8, num_stages=1)


# --8<-- [end:tensor-cores]


# --8<-- [start:pipelined]
def pipelined(a: Tensor, b: Tensor) -> Tensor:
    return by_pointers(a, b, 128, 256, 64, num_warps=8, num_stages=4)


# --8<-- [end:pipelined]


# --8<-- [start:grouped]
def grouped(a: Tensor, b: Tensor) -> Tensor:
    return by_pointers(a, b, 128, 256, 64, group=16, num_warps=8, num_stages=4)


# --8<-- [end:grouped]


STEPS = (naive, tiles, tensor_cores, pipelined, grouped, descriptors, persistent, in_parts, specialised)


def main() -> None:
    """Run every step on small matrices, and compare it with torch."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    a, b = (torch.randn(*shape, device=device).half() for shape in ((128, 64), (64, 512)))
    for step in STEPS:
        torch.testing.assert_close(step(a, b), a @ b, rtol=2**-9, atol=0.03)
        print(f"{step.__name__}: as torch.mm")


if __name__ == "__main__":
    main()

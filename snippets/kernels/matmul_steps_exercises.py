"""Three exercises from "A matmul, step by step". Copy this file, write the kernels, and let the tests judge them:

    cp snippets/kernels/matmul_steps_exercises.py my_matmul.py
    python -m pytest tests/exercises --mine my_matmul.py

`-k one` tests the first alone. Where there is no GPU, the tests use Triton's interpreter. Results begin as NaN: what
your kernel does not write stays NaN.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def nan(*shape: int, like: Tensor) -> Tensor:
    return torch.full(shape, float("nan"), dtype=torch.float32, device=like.device)


# --8<-- [start:one]
@triton.jit
def order_kernel(seen_ptr, down, across, GROUP: tl.constexpr):
    pass  # yours: where this program's tile is, as in `place`; store the program's number there


def order(down: int, across: int, group: int, like: Tensor) -> Tensor:
    """One: which program has which of down x across tiles. Down `group` rows of tiles first, then a column further."""
    seen = nan(down, across, like=like)
    order_kernel[(down * across,)](seen, down, across, GROUP=group)
    return seen


# --8<-- [end:one]


# --8<-- [start:two]
@triton.jit
def edges_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    pass  # yours: program (i, j) has tile (i, j); what lies behind a and b is not yours to read


def edges(a: Tensor, b: Tensor, c: Tensor) -> None:
    """Two: c = a @ b for sizes that no tile divides. a, b fp16, c fp32, all contiguous."""
    (M, K), N = a.shape, b.shape[1]
    edges_kernel[(triton.cdiv(M, 32), triton.cdiv(N, 32))](a, b, c, M, N, K, BM=32, BN=32, BK=16)


# --8<-- [end:two]


# --8<-- [start:three]
@triton.jit
def persistent_bias_kernel(
    a_ptr, b_ptr, bias_ptr, c_ptr, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    pass  # yours: a loop over tiles; programs may be fewer than tiles, or more


def persistent_bias(a: Tensor, b: Tensor, bias: Tensor, programs: int) -> Tensor:
    """Three: relu(a @ b + bias) by so many programs. a, b fp16; M and N are multiples of 32, K of 16."""
    (M, K), N = a.shape, b.shape[1]
    c = nan(M, N, like=a)
    persistent_bias_kernel[(programs,)](a, b, bias, c, M, N, K, BM=32, BN=32, BK=16)
    return c


# --8<-- [end:three]


if __name__ == "__main__":
    print("Copy this file, write the kernels, and run: python -m pytest tests/exercises --mine my_matmul.py")

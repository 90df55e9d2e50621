"""Steps 6 to 9 of a matrix product in Triton: descriptors, persistent programs, parts, and specialized warps."""

# --8<-- [start:imports]
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

# --8<-- [end:imports]
from snippets.kernels.matmul_steps_tiles import checked, multiprocessors, place


# --8<-- [start:descriptors]
@triton.jit
def descriptor_kernel(
    a_desc, b_desc, c_desc, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    row, col = place(tl.program_id(0), M, N, BM, BN, GROUP)
    c = tl.zeros([BM, BN], tl.float32)
    for k in range(0, K, BK):
        c = tl.dot(a_desc.load([row, k]), b_desc.load([k, col]), c)
    c_desc.store([row, col], c.to(c_desc.dtype))


def descriptors(a: Tensor, b: Tensor) -> Tensor:
    c = checked(a, b, 128, 256, 64)
    of = [TensorDescriptor.from_tensor(t, block) for t, block in ((a, [128, 64]), (b, [64, 256]), (c, [128, 256]))]
    grid = (c.numel() // (128 * 256),)
    descriptor_kernel[grid](*of, *c.shape, len(b), 128, 256, 64, 16, num_warps=8, num_stages=4)
    return c


# --8<-- [end:descriptors]


# --8<-- [start:persistent-kernel]
@triton.jit
def persistent_kernel(
    a_desc, b_desc, c_desc, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        row, col = place(tile, M, N, BM, BN, GROUP)
        c = tl.zeros([BM, BN], tl.float32)
        for k in range(0, K, BK):
            c = tl.dot(a_desc.load([row, k]), b_desc.load([k, col]), c)
        store(c_desc, row, col, c, BM, BN, PARTS)


# --8<-- [end:persistent-kernel]


# --8<-- [start:persistent]
def persistent(a: Tensor, b: Tensor, parts: int = 1, stages: int = 3) -> Tensor:
    c = checked(a, b, 128, 256, 64)
    blocks = (a, [128, 64]), (b, [64, 256]), (c, [128, 256 // parts])
    of = [TensorDescriptor.from_tensor(t, block) for t, block in blocks]
    grid = (min(c.numel() // (128 * 256), multiprocessors(a.device)),)
    persistent_kernel[grid](*of, *c.shape, len(b), 128, 256, 64, 16, parts, num_warps=8, num_stages=stages)
    return c


# --8<-- [end:persistent]


# --8<-- [start:in-parts]
@triton.jit
def store(c_desc, row, col, c, BM: tl.constexpr, BN: tl.constexpr, PARTS: tl.constexpr):
    """In PARTS strips of columns, one after the other: they take turns in the same shared memory."""
    if PARTS == 1:
        c_desc.store([row, col], c.to(c_desc.dtype))
    else:
        left, right = c.reshape(BM, 2, BN // 2).permute(0, 2, 1).split()
        store(c_desc, row, col, left, BM, BN // 2, PARTS // 2)
        store(c_desc, row, col + BN // 2, right, BM, BN // 2, PARTS // 2)


def in_parts(a: Tensor, b: Tensor) -> Tensor:
    return persistent(a, b, parts=4, stages=4)  # the shared memory of three parts holds one more stage


# --8<-- [end:in-parts]


# --8<-- [start:specialised]
@triton.jit
def specialised_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    a_desc = tl.make_tensor_descriptor(a_ptr, [M, K], [K, 1], [BM, BK])  # made here, where Triton may halve its block
    b_desc = tl.make_tensor_descriptor(b_ptr, [K, N], [N, 1], [BK, BN])
    c_desc = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BM, BN])
    row, col = place(tl.program_id(0), M, N, BM, BN, GROUP)
    c = tl.zeros([BM, BN], tl.float32)
    for k in tl.range(0, K, BK, warp_specialize=True):
        c = tl.dot(a_desc.load([row, k]), b_desc.load([k, col]), c)
    c_desc.store([row, col], c.to(c_desc.dtype))


def specialised(a: Tensor, b: Tensor) -> Tensor:
    c = checked(a, b, 128, 256, 64)
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=a.device))
    grid = (c.numel() // (128 * 256),)
    specialised_kernel[grid](a, b, c, *c.shape, len(b), 128, 256, 64, 16, num_warps=4, num_stages=3)
    return c


# --8<-- [end:specialised]

"""A matrix product in Triton, from naive lines to cuBLAS: one function for each step, and each step is one idea.

    c = steps.persistent(a, b)  # a (M, K), b (K, N), both contiguous, bf16 or fp16; c as a @ b

Sizes are multiples of the tile, to keep the lines few. kernels/matmul.py is the kernel to use: any sizes, any strides.
"""

# --8<-- [start:imports]
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

# --8<-- [end:imports]


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


# --8<-- [start:place]
@triton.jit
def place(tile, M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """The first row and column of a tile. Tiles are numbered down GROUP rows of tiles, then one column further."""
    across = GROUP * tl.cdiv(N, BN)
    first = tile // across * GROUP
    down = min(tl.cdiv(M, BM) - first, GROUP)
    return (first + tile % across % down) * BM, tile % across // down * BN


# --8<-- [end:place]


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


# --8<-- [start:checked]
def checked(a: Tensor, b: Tensor, BM: int, BN: int, BK: int, dtypes: tuple = (torch.bfloat16, torch.float16)) -> Tensor:
    """Room for the result of matrices that the kernels take.

    Raises:
        ValueError: they are something else.
    """
    for name, t in {"a": a, "b": b}.items():
        if t.dtype not in dtypes or t.dim() != 2 or not t.is_contiguous() or t.numel() >= 2**31:
            raise ValueError(f"{name}: expected a contiguous matrix in {dtypes} of fewer than 2^31 elements, "
                             f"got {t.dtype}, shape {list(t.shape)}, strides {list(t.stride())}")  # fmt: skip
    (M, K), N = a.shape, b.shape[1]
    if len(b) != K or b.dtype != a.dtype or b.device != a.device:
        raise ValueError(f"b: expected {K} rows in {a.dtype} on {a.device}, got {len(b)}, {b.dtype}, {b.device}")
    if M % BM or N % BN or K % BK or not a.numel() * N or M * N >= 2**31:
        raise ValueError(f"a, b: expected M, N, K that are multiples of {BM}, {BN}, {BK}, M * N below 2^31, "
                         f"got {M}, {N}, {K}")  # fmt: skip
    return torch.empty(M, N, dtype=a.dtype, device=a.device)


def multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 3


# --8<-- [end:checked]

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

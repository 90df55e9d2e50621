"""The step after matmul_steps.py, in Gluon, Triton's lower-level language: one warp loads, and eight multiply.

    c = steps.gluon(a, b)  # a (M, K), b (K, N), both contiguous, bf16 or fp16; c as a @ b

It needs an H100 or H200, and nothing interprets it. tests/snippets/kernels compiles it without a GPU.
"""

# --8<-- [start:imports]
import torch
from torch import Tensor
from triton.experimental.gluon import jit
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from snippets.kernels.matmul_steps_tiles import checked, multiprocessors, place

# --8<-- [end:imports]


# --8<-- [start:producer]
@jit
def producer(
    a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K,
    BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Fill each stage that is empty, of one tile after another."""
    stage, phase = gl.to_tensor(0), gl.to_tensor(1)  # as if all stages had just been emptied
    for tile in range(gl.program_id(0), gl.cdiv(M, BM) * gl.cdiv(N, BN), gl.num_programs(0)):
        row, col = place(tile, M, N, BM, BN, GROUP)
        for k in range(0, K, BK):
            mbarrier.wait(empty.index(stage), phase)
            mbarrier.expect(full.index(stage), (BM + BN) * BK * 2)  # bytes of 16-bit numbers that make it full
            tma.async_copy_global_to_shared(a_desc, [row, k], full.index(stage), a_ring.index(stage))
            tma.async_copy_global_to_shared(b_desc, [k, col], full.index(stage), b_ring.index(stage))
            stage, phase = following(stage, phase, STAGES)


@jit
def following(stage, phase, STAGES: gl.constexpr):
    """The next stage. Each time around the ring, its barriers are in their other phase."""
    wraps = stage + 1 == STAGES
    return gl.where(wraps, 0, stage + 1), gl.where(wraps, phase ^ 1, phase)


# --8<-- [end:producer]


# --8<-- [start:consumer]
@jit
def consumer(
    c_desc, a_ring, b_ring, c_ring, full, empty, M, N, K,
    BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr,
    BC: gl.constexpr,
):  # fmt: skip
    """Multiply each stage that is full, and store each tile in strips of BC columns."""
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], warps_per_cta=[8, 1], instr_shape=[16, BN, 16])
    strip: gl.constexpr = gl.NVMMADistributedLayout([3, 0], warps_per_cta=[8, 1], instr_shape=[16, BC, 16])
    stage, phase = gl.to_tensor(0), gl.to_tensor(0)
    c = gl.zeros([BM, BN], gl.float32, sums)
    for tile in range(gl.program_id(0), gl.cdiv(M, BM) * gl.cdiv(N, BN), gl.num_programs(0)):
        row, col = place(tile, M, N, BM, BN, GROUP)
        last = stage + 0  # as a second name of stage, Triton 3.6 would not change it in the loop
        for k in range(0, K, BK):
            mbarrier.wait(full.index(stage), phase)
            c = hopper.warpgroup_mma(a_ring.index(stage), b_ring.index(stage), c, use_acc=k > 0, is_async=True)
            c = hopper.warpgroup_mma_wait(1, deps=(c,))  # until only this one computes
            mbarrier.arrive(empty.index(last), count=1, pred=k > 0)  # one thread, after all eight warps
            last = stage
            stage, phase = following(stage, phase, STAGES)
        c = hopper.warpgroup_mma_wait(0, deps=(c,))
        mbarrier.arrive(empty.index(last), count=1)
        strips = in_strips(c, BN // BC)
        for n in gl.static_range(BN // BC):
            values = gl.convert_layout(strips[n].to(c_desc.dtype), strip)
            tma.store_wait(1)  # until the store before the last one has read its half; strips are even in number
            c_ring.index(n % 2).store(values)
            hopper.fence_async_shared()
            tma.async_copy_shared_to_global(c_desc, [row, col + n * BC], c_ring.index(n % 2))
    tma.store_wait(0)


@jit
def in_strips(c, COUNT: gl.constexpr):
    if COUNT == 1:
        return (c,)
    else:
        left, right = c.reshape([c.shape[0], 2, c.shape[1] // 2]).permute([0, 2, 1]).split()
        return in_strips(left, COUNT // 2) + in_strips(right, COUNT // 2)


# --8<-- [end:consumer]


# --8<-- [start:kernel]
@jit
def gluon_kernel(
    a_desc, b_desc, c_desc, M, N, K,
    BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr,
    BC: gl.constexpr,
):  # fmt: skip
    a_ring = gl.allocate_shared_memory(a_desc.dtype, [STAGES, BM, BK], a_desc.layout)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, [STAGES, BK, BN], b_desc.layout)
    c_ring = gl.allocate_shared_memory(c_desc.dtype, [2, BM, BC], c_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    gl.warp_specialize(
        [  # the first role has the launch's warps
            (consumer, (c_desc, a_ring, b_ring, c_ring, full, empty, M, N, K, BM, BN, BK, GROUP, STAGES, BC)),
            (producer, (a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K, BM, BN, BK, GROUP, STAGES)),
        ],
        [1],  # warp of the other
        [40],  # registers of its threads
    )


def gluon(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in bf16 or fp16, with M, N and K that are multiples of 128, 256 and 64."""
    c = checked(a, b, 128, 256, 64)
    if capability(a.device) != 9:
        raise ValueError(f"a: expected a tensor on an H100 or H200, got one on {a.device}")
    dtype = gl.bfloat16 if a.dtype == torch.bfloat16 else gl.float16
    of = [
        TensorDescriptor.from_tensor(t, block, gl.NVMMASharedLayout.get_default_for(block, dtype))
        for t, block in ((a, [128, 64]), (b, [64, 256]), (c, [128, 64]))
    ]
    grid = (min(c.numel() // (128 * 256), multiprocessors(a.device)),)
    gluon_kernel[grid](*of, *c.shape, len(b), 128, 256, 64, 16, 4, 64, num_warps=8, maxnreg=168)
    return c


def capability(device: torch.device) -> int:
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 0


# --8<-- [end:kernel]


def main() -> None:
    """Check it on a GPU; without one, say so."""
    if not torch.cuda.is_available() or capability(torch.device("cuda")) != 9:
        print("matmul_steps_gluon.py: expected an H100 or H200, found none")
        return
    a, b = (torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    torch.testing.assert_close(gluon(a, b), a @ b, rtol=2**-7, atol=0.25)
    print("gluon: as torch.mm")


if __name__ == "__main__":
    main()

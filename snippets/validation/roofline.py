"""What is the most that this machine can do? The ceilings that every kernel on this site is held against.

Run `python -m snippets.validation.roofline` to print them for the machine at hand.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from snippets.validation.timing import Call, Timing, measure

try:
    import triton
    import triton.language as tl
except ImportError:  # no Triton on this platform: PyTorch's own kernels remain
    triton = None


# --8<-- [start:mixes]
MIXES = {"read": (1, 0), "copy": (1, 1), "triad": (2, 1)}  # tensors read, tensors written
# --8<-- [end:mixes]


# --8<-- [start:attainable]
def attainable(flops: float, moved: float, matrix: float, memory: float) -> float:
    """The least seconds for `flops` FLOP and `moved` bytes, at `matrix` FLOP/s and `memory` bytes/s."""
    return max(flops / matrix, moved / memory)


def ridge(matrix: float, memory: float) -> float:
    """FLOP per byte at which the two take equally long: below it memory rules, above it arithmetic."""
    return matrix / memory


# --8<-- [end:attainable]


@dataclass(frozen=True)
class Ceiling:
    """The best rate that was reached (bytes/s or FLOP/s), and by what."""

    rate: float
    by: str
    timing: Timing


def best(timings: dict[str, Timing], work: float) -> Ceiling:
    """The fastest of several ways to do the same work (bytes or FLOP)."""
    name = min(timings, key=lambda name: timings[name].p50)
    return Ceiling(work / timings[name].p50, name, timings[name])


# --8<-- [start:stream]
if triton is not None:

    @triton.jit
    def _stream(a, b, out, n, READS: tl.constexpr, WRITES: tl.constexpr, BLOCK: tl.constexpr):
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < n
        value = tl.load(a + at, inside, 0.0)
        if READS == 2:
            value += tl.load(b + at, inside, 0.0)
        if WRITES == 1:
            tl.store(out + at, value, inside)
        else:  # a read that nothing uses would be deleted: write one number a block
            tl.store(out + tl.program_id(0), tl.max(value, 0))


def stream(mix: str, a: Tensor, b: Tensor, out: Tensor, block: int, warps: int) -> None:
    """Move one traffic mix through the GPU: contiguous CUDA tensors of one dtype and size."""
    reads, writes = MIXES[mix]
    grid = (triton.cdiv(a.numel(), block),)
    _stream[grid](a, b, out, a.numel(), READS=reads, WRITES=writes, BLOCK=block, num_warps=warps)


# --8<-- [end:stream]


def ways_to_move(mix: str, a: Tensor, b: Tensor, out: Tensor) -> dict[str, Call]:
    """PyTorch's kernel for a traffic mix, and on a GPU plain Triton ones too."""
    pytorch: dict[str, dict[str, Call]] = {
        "read": {"torch.sum": lambda: torch.sum(a, dtype=torch.float32)},
        "copy": {"Tensor.copy_": lambda: out.copy_(a)},
        "triad": {"torch.add": lambda: torch.add(a, b, out=out)},
    }
    ways = pytorch[mix]
    if a.is_cuda and triton is not None:
        for block, warps in ((2048, 4), (4096, 8), (8192, 8)):
            name = f"Triton, {block} elements a block, {warps} warps"
            ways[name] = partial(stream, mix, a, b, out, block, warps)
    return ways


def bandwidth(device: torch.device, elements: int) -> dict[str, Ceiling]:
    """Bytes per second for each traffic mix, on bf16 tensors of `elements` (fp32 on a CPU)."""
    on_gpu = device.type == "cuda"
    a, b, out = (torch.randn(elements, device=device).to(torch.bfloat16 if on_gpu else torch.float32) for _ in range(3))
    ceilings = {}
    for mix, tensors in MIXES.items():
        timings = measure(ways_to_move(mix, a, b, out), device, "device" if on_gpu else "calls")
        ceilings[mix] = best(timings, sum(tensors) * a.nbytes)
    return ceilings


# --8<-- [start:matrix]
def matrix_rate(device: torch.device, size: int, dtype: torch.dtype) -> dict[str, Ceiling]:
    """FLOP per second of a square matrix product: in a burst and sustained (on a CPU, one number)."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    rounds = {"burst": 10, "sustained": 3} if device.type == "cuda" else {"calls": 5}
    return {
        mode: best(measure({"torch.mm": lambda: a @ b}, device, mode, count), 2 * size**3)
        for mode, count in rounds.items()
    }


# --8<-- [end:matrix]


def main() -> None:
    """Print this machine's ceilings and its ridge point."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    elements, size, dtype = (2**29, 8192, torch.bfloat16) if device.type == "cuda" else (2**25, 1024, torch.float32)
    memory = bandwidth(device, elements)
    matrix = matrix_rate(device, size, dtype)
    for mix, ceiling in memory.items():
        print(f"{mix:<10} {ceiling.rate / 1e9:8.1f} GB/s     by {ceiling.by}")
    for mode, ceiling in matrix.items():
        point = ridge(ceiling.rate, memory["copy"].rate)
        print(f"{mode:<10} {ceiling.rate / 1e12:8.3f} TFLOP/s  in {str(dtype)[6:]}: ridge point {point:.0f} FLOP/byte")


if __name__ == "__main__":
    main()

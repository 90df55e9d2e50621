"""What is the most that this machine can do? The ceilings that every kernel on this site is held against.

Run `python -m snippets.validation.roofline` to print them for the machine at hand.
"""
# --8<-- [start:imports]
from dataclasses import dataclass

import torch
from torch import Tensor

from snippets.validation.timing import Call, Timing, measure

try:
    import triton
    import triton.language as tl
except ImportError:  # no Triton on this platform: PyTorch's own kernels remain
    triton = None
# --8<-- [end:imports]


# --8<-- [start:mixes]
MIXES = {"read": (1, 0), "copy": (1, 1), "triad": (2, 1)}  # tensors read, tensors written
# --8<-- [end:mixes]


# --8<-- [start:ceiling]
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
# --8<-- [end:ceiling]


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
# --8<-- [end:stream]


# --8<-- [start:bandwidth]
def ways_to_move(mix: str, a: Tensor, b: Tensor, out: Tensor) -> dict[str, Call]:
    """PyTorch's kernel for a traffic mix, and on a GPU plain Triton ones too."""
    plain: dict[str, dict[str, Call]] = {
        "read": {"torch.sum": lambda: torch.sum(a, dtype=torch.float32)},
        "copy": {"Tensor.copy_": lambda: out.copy_(a)},
        "triad": {"torch.add": lambda: torch.add(a, b, out=out)},
    }
    ways = dict(plain[mix])
    if a.is_cuda and triton is not None:
        reads, writes = MIXES[mix]
        for block, warps in ((2048, 4), (4096, 8), (8192, 8)):
            grid = (triton.cdiv(a.numel(), block),)
            ways[f"Triton, {block} elements a block, {warps} warps"] = (
                lambda grid=grid, block=block, warps=warps: _stream[grid](
                    a, b, out, a.numel(), READS=reads, WRITES=writes, BLOCK=block, num_warps=warps
                )
            )
    return ways


def bandwidth(device: torch.device, elements: int) -> dict[str, Ceiling]:
    """Bytes per second for each traffic mix, on bf16 tensors of `elements` (fp32 on a CPU)."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    a, b, out = (torch.randn(elements, device=device).to(dtype) for _ in range(3))
    mode = "device" if device.type == "cuda" else "calls"
    return {
        mix: best(measure(ways_to_move(mix, a, b, out), device, mode), sum(MIXES[mix]) * a.nbytes) for mix in MIXES
    }
# --8<-- [end:bandwidth]


# --8<-- [start:matrix]
def matrix_rate(device: torch.device, size: int, dtype: torch.dtype) -> dict[str, Ceiling]:
    """FLOP per second of a square matrix product: in a burst and sustained (on a CPU, one number)."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    modes = {"burst": 10, "sustained": 3} if device.type == "cuda" else {"calls": 5}
    return {
        mode: best(measure({"torch.mm": lambda: a @ b}, device, mode, rounds), 2 * size**3)
        for mode, rounds in modes.items()
    }
# --8<-- [end:matrix]


# --8<-- [start:attainable]
def attainable(flops: float, moved: float, matrix: float, memory: float) -> float:
    """The roofline (Williams, Waterman, Patterson 2009): the least seconds for `flops` FLOP and `moved` bytes."""
    return max(flops / matrix, moved / memory)
# --8<-- [end:attainable]


def main() -> None:
    """Print this machine's ceilings."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for mix, ceiling in bandwidth(device, 2**29 if device.type == "cuda" else 2**25).items():
        print(f"{mix:<6} {ceiling.rate / 1e9:10.1f} GB/s   by {ceiling.by}")
    dtype, size = (torch.bfloat16, 8192) if device.type == "cuda" else (torch.float32, 1024)
    for mode, ceiling in matrix_rate(device, size, dtype).items():
        print(f"matrix {ceiling.rate / 1e12:10.3f} TFLOP/s {str(dtype).removeprefix('torch.')}, {mode}")


if __name__ == "__main__":
    main()

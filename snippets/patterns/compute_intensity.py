"""FLOPs and bytes of common layers, by hand and counted, and what each redesign does to their ratio.

Run `python -m snippets.patterns.compute_intensity`. Nothing is computed: tensors have shapes and no data.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from snippets.compiler.what_compile_does_traffic import nbytes
from snippets.patterns.compute_intensity_decode import converted


# --8<-- [start:layer]
@dataclass(frozen=True)
class Work:
    """FLOPs of the matrix units, and bytes: each input read once, each output written once."""

    flops: int
    bytes: int

    @property
    def intensity(self) -> float:
        return self.flops / self.bytes


def linear(rows: int, inner: int, columns: int, weight: int = 2) -> Work:
    """Rows times a matrix whose numbers have `weight` bytes; the rest is bf16."""
    return Work(2 * rows * inner * columns, 2 * rows * (inner + columns) + weight * inner * columns)


def convolution(batch: int, side: int, channels: int, kernel: int, groups: int = 1) -> Work:
    """As many channels out as in, and places, too."""
    places, weights = batch * side**2, channels * channels // groups * kernel**2
    return Work(2 * places * weights, 2 * (2 * places * channels + weights))


def decode_attention(batch: int, length: int, heads: int, shared: int, size: int) -> Work:
    """One query a head against its cache of keys and values, which `shared` heads have in common."""
    cache = 2 * batch * length * (heads // shared) * size
    return Work(4 * batch * length * heads * size, 2 * (cache + 2 * batch * heads * size))


def elementwise(elements: int, read: int = 1, written: int = 1) -> Work:
    """No work for the matrix units: whatever is computed, the bytes decide."""
    return Work(0, 2 * elements * (read + written))


# --8<-- [end:layer]


# --8<-- [start:counted]
class Bytes(TorchDispatchMode):
    """The bytes of what reaches PyTorch's kernels: of each operation's tensors, views left out."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        if not any(returned.alias_info for returned in operation._schema.returns):
            self.total += nbytes(args) + nbytes(result)
        return result


def counted(function: Callable, *inputs: Tensor) -> Work:
    """The same by machine: PyTorch's own counter of FLOPs, and all tensors that go in and come out."""
    with FlopCounterMode(display=False) as flops, Bytes() as moved:
        function(*inputs)
    return Work(flops.get_total_flops(), moved.total)


# --8<-- [end:counted]


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def same_size(x: Tensor, weight: Tensor) -> Tensor:
    """A convolution in as many groups as the weight is made for."""
    return F.conv2d(x, weight, padding=weight.shape[-1] // 2, groups=x.shape[1] // weight.shape[1])


# --8<-- [start:map]
LAYERS: dict[str, tuple[Work, Callable, tuple[Tensor, ...]]] = {
    "linear 8192, 1 token": (linear(1, 8192, 8192), F.linear, (empty(1, 8192), empty(8192, 8192))),
    "linear 8192, 64 tokens": (linear(64, 8192, 8192), F.linear, (empty(64, 8192), empty(8192, 8192))),
    "linear 8192, 8192 tokens": (linear(8192, 8192, 8192), F.linear, (empty(8192, 8192), empty(8192, 8192))),
    "linear 256, 65536 tokens": (linear(65536, 256, 256), F.linear, (empty(65536, 256), empty(256, 256))),
    "convolution 3x3, 256 channels": (
        convolution(32, 56, 256, 3),
        same_size,
        (empty(32, 256, 56, 56), empty(256, 256, 3, 3)),
    ),
    "depthwise 3x3, 256 channels": (
        convolution(32, 56, 256, 3, groups=256),
        same_size,
        (empty(32, 256, 56, 56), empty(256, 1, 3, 3)),
    ),
    "GELU": (elementwise(65536 * 4096), F.gelu, (empty(65536, 4096),)),
    "residual addition": (elementwise(65536 * 4096, 2), torch.add, (empty(65536, 4096), empty(65536, 4096))),
}
# --8<-- [end:map]


# --8<-- [start:redesigns]
def several(times: int, work: Work) -> Work:
    """Layers one after the other, each of which reads and writes its own."""
    return Work(times * work.flops, times * work.bytes)


REDESIGNS: dict[str, tuple[Work, Work]] = {  # before and after
    "batch: 1 token, 64 tokens": (linear(1, 8192, 8192), linear(64, 8192, 8192)),
    "quantise: bf16 weights, int8": (linear(1, 8192, 8192), linear(1, 8192, 8192, weight=1)),
    "both": (linear(1, 8192, 8192), linear(64, 8192, 8192, weight=1)),
    "widen: 64 layers of 256, 1 of 2048": (several(64, linear(65536, 256, 256)), linear(65536, 2048, 2048)),
    "merge q, k, v of 1 token": (several(3, linear(1, 4096, 4096)), linear(1, 4096, 3 * 4096)),
    "merge 3 heads of 64 columns": (several(3, linear(65536, 4096, 64)), linear(65536, 4096, 3 * 64)),
    "share keys: 1 head, 8 heads": (decode_attention(1, 8192, 32, 1, 128), decode_attention(1, 8192, 32, 8, 128)),
    "group: depthwise, 32 channels each": (
        convolution(32, 56, 256, 3, groups=256),
        convolution(32, 56, 256, 3, groups=8),
    ),
}
# --8<-- [end:redesigns]


def main() -> None:
    print("==== map")
    print(f"{'':<32}{'FLOPs':>10}{'bytes':>10}{'counted':>11}{'':>10}{'FLOP/byte':>11}")
    for name, (work, function, inputs) in LAYERS.items():
        found = counted(function, *inputs)
        flops, moved = f"{found.flops / 1e9:.2f} G", f"{found.bytes / 1e6:.1f} M"
        by_hand = f"{work.flops / 1e9:>8.2f} G{work.bytes / 1e6:>8.1f} M"
        print(f"{name:<32}{by_hand}{flops:>11}{moved:>10}{work.intensity:>11.1f}")
    print("==== redesigns")
    print(f"{'FLOP/byte':<37}{'before':>9}{'after':>9}{'FLOPs over':>12}{'bytes over':>12}")
    for name, (before, after) in REDESIGNS.items():
        flops, moved = after.flops / before.flops, after.bytes / before.bytes
        print(f"{name:<37}{before.intensity:>9.2f}{after.intensity:>9.2f}{flops:>12.2f}{moved:>12.2f}")
    print("==== decode")
    print(f"{'bytes for a linear 8192':<26}{'by hand':>12}{'counted':>12}")
    x, scale = empty(1, 8192), empty(8192, dtype=torch.float32)
    small = empty(8192, 8192, dtype=torch.int8)
    for name, work, found in (
        ("bf16 weights", linear(1, 8192, 8192), counted(F.linear, x, empty(8192, 8192))),
        ("int8, converted before", linear(1, 8192, 8192, weight=5), counted(converted, x, small, scale)),
        ("int8, in the product", linear(1, 8192, 8192, weight=1), None),
    ):
        print(f"{name:<26}{work.bytes / 1e6:>10.1f} M{f'{found.bytes / 1e6:>10.1f} M' if found else '':>12}")


if __name__ == "__main__":
    main()

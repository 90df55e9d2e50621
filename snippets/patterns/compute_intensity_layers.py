"""FLOPs and bytes of common layers, by hand, and counted by PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from snippets.compiler.what_compile_does_traffic import nbytes


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

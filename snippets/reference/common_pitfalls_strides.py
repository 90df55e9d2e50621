"""A Triton kernel that assumes a layout: the code before and after."""

import os
from collections.abc import Callable

import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

import triton
import triton.language as tl

from snippets.reference.common_pitfalls_breaks import make_x


# --8<-- [start:strides]
@triton.jit
def _double(x, y, count, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y + at, 2 * tl.load(x + at, at < count), at < count)


def strides_before(x: Tensor) -> Tensor:
    y = torch.empty(x.shape, device=x.device)
    _double[(1,)](x, y, x.numel(), SIZE=32)
    return y


def strides_after(x: Tensor) -> Tensor:
    return strides_before(x.contiguous())


# --8<-- [end:strides]


def doubled(function: Callable) -> str:
    """Whether each number of a transposed matrix is doubled where it stands."""
    x = make_x().to("cuda" if torch.cuda.is_available() else "cpu").t()
    return "2 * x" if torch.equal(function(x), 2 * x) else "numbers in other places, and no error"

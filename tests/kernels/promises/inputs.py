"""The arguments that tests of kernels are given, and the words of their choice."""

import pytest
import torch
from torch import Tensor

GPU = torch.cuda.is_available()
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SOME = 4 if GPU else 2  # rows, where their number does not matter: interpreted, each takes its time
# x, weight and bias that a layer norm must refuse, with what, and saying what
NO_LAYER_NORM = (
    (torch.ones(2, 8).int(), torch.ones(8), torch.ones(8), TypeError, "x: expected .*fp32.* got torch.int32"),
    (torch.ones(2, 8), torch.ones(8).double(), torch.ones(8), TypeError, "weight: .* got torch.float64"),
    (torch.ones(2, 8), torch.ones(8), torch.ones(8).int(), TypeError, "bias: .* got torch.int32"),
    (torch.ones(2, 8), [1.0] * 8, torch.ones(8), TypeError, "weight: expected .*tensor, got <class 'list'>"),
    (torch.ones(2, 8), torch.ones(8), 1e-5, TypeError, "bias: expected .*tensor, got <class 'float'>"),
    ([1.0], torch.ones(1), torch.ones(1), TypeError, "x: expected .*tensor, got <class 'list'>"),
    (torch.ones(2, 8), torch.ones(7), torch.ones(8), ValueError, r"weight: expected shape \[8\], got \[7\]"),
    (torch.ones(2, 8), torch.ones(8), torch.ones(2, 8), ValueError, r"bias: expected shape \[8\], got \[2, 8"),
    (torch.ones(()), torch.ones(()), torch.ones(()), ValueError, "x: expected at least one dimension, got no"),
    (torch.ones(2, 8), torch.ones(8), torch.ones(8, device="meta"), ValueError, "bias: expected on .*, where "),
)  # fmt: skip
needs_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU")


def randn(shape, dtype, device, seed=0, offset=0.0) -> Tensor:
    """Normal numbers, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) + offset).to(device, dtype)


def placed(argument: object, device) -> object:
    """An argument on the device; what is no tensor, or is elsewhere on purpose, as it is."""
    return argument.to(device) if isinstance(argument, Tensor) and argument.device.type != "meta" else argument


def largest_partial_sum(terms: Tensor) -> float:
    """Of the sums over all rows: each is a summand of the next one."""
    return terms.reshape(-1, terms.shape[-1]).cumsum(0).abs().max().item()


def strided(name: str, shape, dtype, device) -> Tensor:
    """A tensor of this shape (rows, columns) with these strides."""
    rows, columns = shape
    base = randn((2 * rows, 2 * columns), dtype, device, seed=1)
    return {
        "rows of a wider tensor": lambda: base[:rows, columns // 2 : columns // 2 + columns],
        "every other row": lambda: base[::2, :columns],
        "every other column": lambda: base[:rows, ::2],
        "transposed": lambda: base.view(2 * columns, 2 * rows)[:columns, :rows].t(),
        "one row expanded": lambda: base[:1, :columns].expand(rows, columns),
        "one number expanded": lambda: base[0, 0].expand(rows, columns),
    }[name]()

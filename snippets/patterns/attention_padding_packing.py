"""Packing around attention only, with a gradient that knows that no token stands twice in the index.

Run `python -m snippets.patterns.attention_padding_packing` to see what the gradient of plain indexing calls instead.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from snippets.patterns.attention_padding_varlen import (
    Packing,
    make_packing,
    pack,
    spread_lengths,
    unpack,
    variable_length,
)


# --8<-- [start:pack]
class Pack(torch.autograd.Function):
    """As `pack`; backward writes each gradient to its place, since no place is in the index twice."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, packing: Packing) -> Tensor:
        ctx.packing, ctx.batch = packing, t.shape[:2]
        return pack(t, packing)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return unpack(grad, ctx.packing, *ctx.batch), None


def packed_inside(q: Tensor, k: Tensor, v: Tensor, packing: Packing, causal: bool) -> Tensor:
    """For a model that is padded elsewhere."""
    rows, tokens = q.shape[:2]
    result = variable_length(*(Pack.apply(t, packing) for t in (q, k, v)), packing, causal)
    return unpack(result, packing, rows, tokens)


# --8<-- [end:pack]


class Called(TorchDispatchMode):
    """Notes the names of the operations that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__.removesuffix(".default"))
        return func(*args, **(kwargs or {}))


def in_backward(way: Callable[..., Tensor]) -> list[str]:
    """What the backward of a way to pack calls."""
    lengths = spread_lengths(4, 64)
    packing = make_packing(lengths, 64, torch.device("cpu"))
    t = torch.randn(4, 64, 2, 16, requires_grad=True)
    packed = way(t, packing)
    with Called() as called:
        packed.backward(torch.ones_like(packed))
    return [name for name in called.names if name not in ("detach", "view", "_unsafe_view")]


def main() -> None:
    for name, way in {"t[index]": pack, "Pack": Pack.apply}.items():
        print(f"{name:<10}{', '.join(in_backward(way))}")


if __name__ == "__main__":
    main()

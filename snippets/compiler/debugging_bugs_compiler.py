"""Bugs in what is given to the compiler: a decomposition, a pass, a lowering."""

from typing import Any

import torch
from torch import Tensor
from torch._inductor.decomposition import register_decomposition
from torch._inductor.lowering import lowerings, register_lowering

aten = torch.ops.aten


# --8<-- [start:decomposition]
@torch.library.custom_op("planted::halve", mutates_args=())
def halve(x: Tensor) -> Tensor:
    return x / 2


@halve.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@register_decomposition([torch.ops.planted.halve.default])
def _(x: Tensor) -> Tensor:
    return x * 0.25  # wrong: 0.5


def halved(x: Tensor) -> Tensor:
    return halve(x.exp()).sin()


# --8<-- [end:decomposition]
# --8<-- [start:pass]
def drop_factors(graph: torch.fx.Graph) -> None:
    """A pass that means to drop products with 1, and drops those with any number."""
    for node in graph.find_nodes(op="call_function", target=aten.mul.Tensor):
        if isinstance(node.args[1], float):  # wrong: == 1.0
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def damped(x: Tensor) -> Tensor:
    return (x.exp() * 0.5).sin()


# --8<-- [end:pass]
# --8<-- [start:lowering]
@torch.library.custom_op("planted::shifted", mutates_args=())
def shifted(x: Tensor) -> Tensor:
    return x + 1


@shifted.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@register_lowering(torch.ops.planted.shifted.default)
def _(x: Any) -> Any:
    return lowerings[aten.add_.Tensor](x, 1)  # wrong: aten.add.Tensor, which leaves x alone


def shifted_beside(x: Tensor) -> Tensor:
    return shifted(x) * x


# --8<-- [end:lowering]

"""What a compiled forward keeps for backward, and what backward computes again."""

from dataclasses import dataclass

import torch
from torch import Tensor

from snippets.compiler.training_checkpointing import PRODUCTS


# --8<-- [start:kept]
@dataclass(frozen=True)
class Kept:
    """What a partition keeps for backward, in bytes, and what it computes again.

    Inputs of the graph, which exist anyway, are not counted, nor are views of them.
    """

    nbytes: int
    products: int  # matrix products and attention that backward repeats
    others: int  # other operations that it repeats


def kept(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, outputs: int = 1) -> Kept:
    """An operation is repeated if backward has a node of the same name, or runs it with forward's random numbers."""
    saved = {base(node) for node in forward.graph.output_node().args[0][outputs:]}
    in_forward = {node.name for node in forward.graph.nodes}
    again = [
        operation
        for node in backward.graph.nodes
        if (operation := work(node)) and (node.name in in_forward or node.target is not operation)
    ]
    products = sum(operation in PRODUCTS for operation in again)
    return Kept(sum(nbytes(node) for node in saved if node.op != "placeholder"), products, len(again) - products)


# --8<-- [end:kept]
def base(node: torch.fx.Node) -> torch.fx.Node:
    """What a view is a view of."""
    while node.op != "placeholder" and getattr(node.target, "is_view", False):
        node = node.args[0]
    return node


def work(node: torch.fx.Node) -> torch._ops.OpOverload | None:
    """The operation that a node runs; None if it is a view or picks from a tuple.

    Attention counts as random, dropout or not, so a graph that repeats it wraps it with the state to begin from.
    """
    wrapped = {"run_and_save_rng_state": 0, "run_with_rng_state": 1}.get(str(node.target))
    operation = node.target if wrapped is None else node.args[wrapped]
    return operation if isinstance(operation, torch._ops.OpOverload) and not operation.is_view else None


def nbytes(node: torch.fx.Node) -> int:
    """Of a tensor; the state of a random generator, whose size is left open, counts as nothing."""
    value = node.meta.get("val")
    fixed = isinstance(value, Tensor) and all(isinstance(size, int) for size in value.shape)
    return value.nbytes if fixed else 0

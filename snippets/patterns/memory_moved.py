"""Counts the operations of a call that read or write memory, with their bytes."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from snippets.compiler.inductor_code_launches import Launch
from snippets.compiler.what_compile_does_traffic import nbytes


# --8<-- [start:moved]
class Traffic(TorchDispatchMode):
    """Notes each operation that reads or writes memory, with the bytes. A view is none, and neither is `empty`."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[Launch] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given, written = ([leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)] for tree in (args, result))
        shared = {tensor.untyped_storage()._cdata for tensor in given}
        view = not func._schema.is_mutable and all(each.untyped_storage()._cdata in shared for each in written)
        if not view and "empty" not in func._schema.name:
            read = given[1:] if func is torch.ops.aten.copy_.default else given  # what it overwrites is not read
            self.launches.append(Launch(str(func), nbytes([*read, *written])))
        return result


def moved(function: Callable, *inputs: Tensor) -> list[Launch]:
    """The operations of a call that read or write memory, in order."""
    with Traffic() as traffic:
        function(*inputs)
    return traffic.launches


def passes(function: Callable, x: Tensor) -> float:
    """How many times the size of x a call reads and writes: 0 for a view, 2 for a copy."""
    return sum(launch.bytes for launch in moved(function, x)) / x.nbytes


# --8<-- [end:moved]

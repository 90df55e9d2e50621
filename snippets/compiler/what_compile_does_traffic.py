"""The operations of an eager call, with the bytes that each reads and writes."""

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


# --8<-- [start:traffic]
class Traffic(TorchDispatchMode):
    """Notes each operation that reaches PyTorch's kernels, with the bytes that it reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[str, int, int]] = []  # name, bytes read, bytes written
        self.calls: list[Callable] = []  # to time each by itself

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        self.operations.append((str(operation), nbytes(args), nbytes(result)))
        self.calls.append(partial(operation, *args, **(kwargs or {})))
        return result


def nbytes(tree: object) -> int:
    """Bytes of all tensors in a tree of arguments or results."""
    return sum(leaf.nbytes for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


# --8<-- [end:traffic]

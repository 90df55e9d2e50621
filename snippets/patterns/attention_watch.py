"""Counts the operations that make a tensor, and notes the largest one."""

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


# --8<-- [start:watch]
class Watch(TorchDispatchMode):
    """Counts the ops that make a tensor (views do not), and notes the largest one and who computed attention."""

    def __init__(self) -> None:
        super().__init__()
        self.made, self.largest, self.attention = 0, 0, "softmax of explicit scores"

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        known = {each.untyped_storage().data_ptr() for each in args if isinstance(each, Tensor)}
        outputs = [each for each in tree_leaves(result) if isinstance(each, Tensor)]
        new = [each.nbytes for each in outputs if each.untyped_storage().data_ptr() not in known]
        self.made += bool(new)
        self.largest = max([self.largest, *new])
        if "attention" in func.__name__:
            self.attention = func.__name__.removesuffix(".default")
        return result


# --8<-- [end:watch]

"""Code that needs a tensor's values: a branch, a number, NumPy, an exception. Each before and after its fix."""

import torch
from torch import Tensor


# --8<-- [start:branch]
def branch_before(x: Tensor) -> Tensor:
    hidden = x.sin()
    if hidden.mean() > 0:
        return hidden * 2
    return hidden - 1


def branch_after(x: Tensor) -> Tensor:
    hidden = x.sin()
    return torch.where(hidden.mean() > 0, hidden * 2, hidden - 1)


def branch_cond(x: Tensor) -> Tensor:
    hidden = x.sin()
    return torch.cond(hidden.mean() > 0, lambda h: h * 2, lambda h: h - 1, (hidden,))


# --8<-- [end:branch]
# --8<-- [start:item]
def item_before(x: Tensor) -> Tensor:
    scale = x.abs().max().item()
    return (x / scale).cos()


def item_after(x: Tensor) -> Tensor:
    scale = x.abs().max()  # stays a tensor of one element
    return (x / scale).cos()


# --8<-- [end:item]
# --8<-- [start:numpy]
def numpy_before(x: Tensor) -> Tensor:
    import numpy

    hidden = x.sin()
    return torch.from_numpy(numpy.interp(hidden.numpy(), [0, 1], [0, 2])).float().cos()


def numpy_after(x: Tensor) -> Tensor:
    hidden = x.sin()
    return (2 * hidden.clamp(0, 1)).cos()


# --8<-- [end:numpy]
# --8<-- [start:try]
def try_before(x: Tensor) -> Tensor:
    hidden = x.log()
    try:
        if not hidden.isfinite().all().item():
            raise ValueError
        return hidden.cos()
    except ValueError:
        return x.cos()


def try_after(x: Tensor) -> Tensor:
    hidden = x.log()
    return torch.where(hidden.isfinite().all(), hidden, x).cos()


# --8<-- [end:try]

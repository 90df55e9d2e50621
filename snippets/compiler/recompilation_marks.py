"""What a mark on a size promises: dynamic, perhaps dynamic, and unbacked."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError


# --8<-- [start:promise]
def at_five(x: Tensor) -> Tensor:
    """Asks for one size, and so makes a constant of it where the answer is yes."""
    return x * 2 if x.shape[0] == 5 else x


def of_marked(mark: Callable[[Tensor, int], None]) -> str:
    """Whether a function that asks for a size is compiled where the size is marked, or what torch says."""
    x = torch.ones(5)
    mark(x, 0)
    torch.compiler.reset()
    try:
        torch.compile(at_five, backend="eager")(x)
    except ConstraintViolationError as error:
        return next(text.strip(" -") for text in str(error).splitlines() if "You marked" in text).partition(". ")[0]
    return "one graph, for 5 alone"


# --8<-- [end:promise]
# --8<-- [start:attend]
def attend(x: Tensor) -> Tensor:
    """Self-attention in two heads, of which nothing is known but the code."""
    heads = x.unflatten(-1, (2, -1)).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)


def attend_checked(x: Tensor) -> Tensor:
    torch._check(x.shape[1] >= 2)  # says of the size what the mark took away
    return attend(x)


def of_unbacked(function: Callable[[Tensor], Tensor]) -> str:
    """Whether a function can be one graph where the length is unbacked, or what stands in the way."""
    x = torch.ones(1, 8, 64)
    torch._dynamo.decorators.mark_unbacked(x, 1)
    torch.compiler.reset()
    try:
        torch.compile(function, backend="eager", fullgraph=True)(x)
    except torch._dynamo.exc.TorchDynamoException as error:
        return str(error).splitlines()[0].partition(" (")[0]
    return "one graph"


# --8<-- [end:attend]

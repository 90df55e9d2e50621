"""Working in place: what it moves, what autograd refuses, and what nothing refuses."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from snippets.compiler.inductor_code import made
from snippets.compiler.inductor_code_launches import Launch


# --8<-- [start:in-place]
def apart(x: Tensor) -> Tensor:
    y = x * 2
    y = y + 1
    return y.relu()


def in_place(x: Tensor) -> Tensor:
    y = x * 2
    y += 1
    return y.relu_()


# --8<-- [end:in-place]


# --8<-- [start:dangers]
def saved_output(x: Tensor) -> None:
    """exp keeps its output for backward."""
    y = x.exp()
    y += 1
    y.sum().backward()


def leaf(x: Tensor) -> None:
    x += 1


def expanded(x: Tensor) -> None:
    """Three rows that are one in memory."""
    x.detach()[:1].expand(3, -1).add_(1)


def one_of_several(x: Tensor) -> None:
    """unbind returns several views at once."""
    first, *_ = (x * 1).unbind()
    first += 1


def on_the_way_to_a_gradient(x: Tensor) -> None:
    """As saved_output, through a second tensor that shares the memory."""
    y = x.exp()
    y.detach().add_(1)
    y.sum().backward()


REFUSED = (saved_output, leaf, expanded, one_of_several, on_the_way_to_a_gradient)


def by_data(x: Tensor) -> float:
    """The gradient of exp at 0, which is 1, where `.data` changed what backward reads."""
    y = x.exp()
    y.data.add_(1)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    return float(gradient[0, 0])


def of_the_callers_tensor(x: Tensor) -> float:
    """What is left of the caller's 0 behind a function that scales its own view of it."""
    view = x.detach()[0]
    view += 5
    return float(x.detach()[0, 0])


SILENT: dict[str, Callable[[Tensor], float]] = {"by .data": by_data, "through a view": of_the_callers_tensor}
# --8<-- [end:dangers]


def words(error: BaseException) -> str:
    """The first sentence of an error."""
    return f"{type(error).__name__}: {str(error).splitlines()[0].split('. ')[0].removesuffix('.')}"


def refusal(change: Callable[[Tensor], None]) -> str:
    x = torch.zeros(2, 3, requires_grad=True)
    try:
        change(x)
    except RuntimeError as error:
        return words(error)
    return "nothing"


def compiled() -> Mapping[str, list[Launch]]:
    """What Inductor makes of `apart` and of `in_place`."""
    x = torch.randn(1024, 1024)
    return {function.__name__: made(function, x)[0].launches for function in (apart, in_place)}

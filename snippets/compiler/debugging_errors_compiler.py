"""Errors while Dynamo follows the code and while it is compiled, each provoked."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._inductor.lowering import register_lowering

X = torch.linspace(0, 1, 8)


def custom(name: str) -> Callable[[Callable], Any]:
    """A custom operator that doubles its input, with the given fake kernel."""

    def define(fake: Callable) -> Any:
        def double(x: Tensor) -> Tensor:
            return x * 2

        operator = torch.library.custom_op(f"provoked::{name}", double, mutates_args=())
        operator.register_fake(fake)
        return operator

    return define


# --8<-- [start:tracing]
def shapes_that_do_not_fit() -> None:
    torch.compile(lambda x: x @ torch.ones(5))(X)


@custom("reads_data")
def reads_data(x: Tensor) -> Tensor:
    x.data_ptr()  # a stand-in has no data
    return torch.empty_like(x)


def data_pointer() -> None:
    torch.compile(lambda x: reads_data(x))(X)


def branch_on_a_value() -> None:
    torch.compile(lambda x: x.sin() if x.sum() > 0 else x, fullgraph=True)(X)


def too_many_graphs() -> None:
    compiled = torch.compile(lambda x: x.sin(), backend="eager", dynamic=False, fullgraph=True)
    with torch._dynamo.config.patch(recompile_limit=1):
        for length in (2, 3):
            compiled(X[:length])


# --8<-- [end:tracing]
# --8<-- [start:compiling]
def unknown_backend() -> None:
    torch.compile(lambda x: x.sin(), backend="inductr")(X)


def failing_backend() -> None:
    def ours(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable:
        raise ValueError("planted")

    torch.compile(lambda x: x.sin(), backend=ours)(X)


@custom("no_gradient")
def no_gradient(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def no_formula() -> None:
    leaf = X.clone().requires_grad_()
    torch.compile(lambda x: no_gradient(x).sum(), backend="aot_eager")(leaf).backward()


@custom("lowered")
def lowered(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@register_lowering(torch.ops.provoked.lowered.default)
def _(x: object) -> object:
    raise KeyError("planted")


def failing_lowering() -> None:
    torch.compile(lambda x: lowered(x))(X)


# --8<-- [end:compiling]

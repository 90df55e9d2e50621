"""Each error message that the page lists, provoked. For what belongs to another machine, this one stands in.

Run `python -m snippets.compiler.debugging_errors`.
"""

import contextlib
import logging
import re
import sysconfig
import textwrap
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._inductor import config, cpp_builder, scheduler
from torch._inductor.lowering import register_lowering
from torch._inductor.virtualized import V

from snippets.compiler import debugging_bugs  # as a whole: what registers an operator's parts has no name
from snippets.compiler.debugging import first_line

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


# --8<-- [start:running]
def wrong_stride() -> None:
    torch.compile(debugging_bugs.stored_by_column)(X.view(2, 4))


def wrong_fake_kernel() -> None:
    torch.compile(debugging_bugs.precise_sin, backend="aot_eager_decomp_partition_crossref")(X)


def wrong_schema() -> None:
    torch.compile(debugging_bugs.scaled, backend="eager_debug")(X)


def index_out_of_bounds() -> None:
    torch.compile(lambda x, i: x[i].sin())(X, torch.tensor([9]))


def nan() -> None:
    with config.patch(nan_asserts=True):
        torch.compile(lambda x: (x - 2).log().sum())(X)


def not_deterministic() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        torch.compile(lambda x: x.clone().put_(torch.tensor([0]), X[:1]), backend="aot_eager")(X)
    finally:
        torch.use_deterministic_algorithms(False)


# --8<-- [end:running]


# --8<-- [start:backward]
def output_changed() -> None:
    leaf = X.clone().requires_grad_()
    output = torch.compile(lambda x: x.exp(), backend="aot_eager")(leaf)
    output.mul_(2)  # backward needs it as it was
    output.sum().backward()


def backward_twice() -> None:
    leaf = X.clone().requires_grad_()
    loss = torch.compile(lambda x: x.exp().sum(), backend="aot_eager")(leaf)
    loss.backward()
    loss.backward()


def double_backward() -> None:
    leaf = X.clone().requires_grad_()
    loss = torch.compile(lambda x: (x.sin() * x).sum(), backend="aot_eager")(leaf)
    torch.autograd.grad(loss, leaf, create_graph=True)[0].sum().backward()


# --8<-- [end:backward]


# --8<-- [start:machine]
def no_compiler() -> None:
    with config.patch({"cpp.cxx": ("/nowhere/g++",)}):
        torch.compile(lambda x: x.sin() + 3)(X)


def no_python_headers() -> None:
    real = sysconfig.get_path

    def elsewhere(name: str, *args: Any, **kwargs: Any) -> str:
        return "/nowhere" if name == "include" else real(name, *args, **kwargs)

    with mock.patch.object(sysconfig, "get_path", elsewhere), config.patch(cpp_cache_precompile_headers=False):
        torch.compile(lambda x: x.cos() + 3)(X)


def no_compiler_on_windows() -> None:
    cpp_builder.check_compiler_exist_windows("cl")


def create_gpu_backend(major: int, minor: int) -> None:
    """What Inductor does before it writes the first kernel for a GPU, here for one of that compute capability."""
    properties = mock.Mock(major=major, minor=minor)
    properties.name = "a GPU"
    with (
        V.set_graph_handler(mock.Mock()),
        mock.patch.object(scheduler, "has_triton", lambda *_: False),
        mock.patch.object(scheduler, "get_scheduling_for_device", lambda _: mock.Mock()),
        mock.patch("torch.cuda.get_device_properties", lambda _: properties),
    ):
        scheduler.Scheduler.create_backend(mock.Mock(), torch.device("cuda", 0))


def no_triton() -> None:
    create_gpu_backend(9, 0)


def gpu_too_old() -> None:
    create_gpu_backend(6, 1)


# --8<-- [end:machine]

ERRORS = {
    "while Dynamo follows the code": (shapes_that_do_not_fit, data_pointer, branch_on_a_value, too_many_graphs),
    "while it is compiled": (unknown_backend, failing_backend, no_formula, failing_lowering),
    "while it runs": (
        wrong_stride, wrong_fake_kernel, wrong_schema, index_out_of_bounds, nan, not_deterministic,
    ),
    "in the backward": (output_changed, backward_twice, double_backward),
    "on this machine": (no_compiler, no_python_headers, no_compiler_on_windows, no_triton, gpu_too_old),
}  # fmt: skip


def provoke(function: Callable[[], None]) -> Exception:
    """The error that the function raises."""
    torch.compiler.reset()
    with quietly(), config.patch(fx_graph_cache=False), torch._functorch.config.patch(enable_autograd_cache=False):
        try:
            function()
        except Exception as error:  # noqa: BLE001  # whatever it raises is what is shown
            return error
    raise AssertionError(f"{function.__name__}: no error")


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without what is logged and warned on the way to the error."""
    logging.disable(logging.ERROR)
    with warnings.catch_warnings(action="ignore"):
        yield
    logging.disable(logging.NOTSET)


def said(error: Exception) -> str:
    """What to search for: the error inside Dynamo's own, the compiler's line, the first line, or the code itself."""
    text = str(error)
    if inner := re.search(r"got \w+\((['\"])(.*?)\1\)", text):
        text = inner[2]
    elif compiler := re.search(r"(?<=error: ).*", text):
        text = compiler[0]
    else:
        text = first_line(error) or traceback.extract_tb(error.__traceback__)[-1].line or ""
    text = re.sub(r"kernel, \S+, ", "", text)
    return textwrap.shorten(re.split(r"(?<=[^.][^.])\. ", text)[0], 100, placeholder=" …")


def main() -> None:
    """Provoke each, and print its type and the line to search for."""
    for when, functions in ERRORS.items():
        print(f"==== {when}")
        for function in functions:
            error = provoke(function)
            print(f"{function.__name__}\n  {type(error).__name__}: {said(error)}")


if __name__ == "__main__":
    main()

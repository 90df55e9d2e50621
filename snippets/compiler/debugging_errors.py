"""Each error message that the page lists, provoked. For what belongs to another machine, this one stands in.

Run `python -m snippets.compiler.debugging_errors`.
"""

import contextlib
import logging
import re
import textwrap
import traceback
import warnings
from collections.abc import Callable, Iterator

import torch
from torch._inductor import config

from snippets.compiler.debugging import first_line
from snippets.compiler.debugging_errors_compiler import (
    X,
    branch_on_a_value,
    data_pointer,
    failing_backend,
    failing_lowering,
    no_formula,
    shapes_that_do_not_fit,
    too_many_graphs,
    unknown_backend,
)
from snippets.compiler.debugging_errors_machine import (
    gpu_too_old,
    no_compiler,
    no_compiler_on_windows,
    no_python_headers,
    no_triton,
)
from snippets.compiler.debugging_errors_running import (
    index_out_of_bounds,
    nan,
    not_deterministic,
    wrong_fake_kernel,
    wrong_schema,
    wrong_stride,
)


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

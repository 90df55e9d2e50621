"""Pitfalls of graph breaks and of errors while capturing: the code before and after."""

from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO

import torch
from torch import Tensor

from snippets.compiler.graph_breaks import find


def compiled(function: Callable, **options: bool) -> Callable:
    """Captured and split as always, but not made into kernels: all that matters here is over by then."""
    torch.compiler.reset()
    return torch.compile(function, backend="aot_eager", **options)


def message(function: Callable, *inputs: object) -> str:
    """The error that a call ends with, down to its first hint."""
    try:
        function(*inputs)
    except RuntimeError as error:  # all of Dynamo's are
        text = f"{type(error).__name__}: {error}"
        for tail in ("\n  Hint", "\n  Developer debug", "\nconsider using", "\nFor more", "\nfrom user code"):
            text = text.partition(tail)[0]
        return "\n".join(line for line in text.splitlines() if line.strip())
    return "no error"


def make_x() -> Tensor:
    return torch.linspace(-1, 2, 32).view(4, 8)


# --8<-- [start:skipped]
def skipped_before(x: Tensor) -> Tensor:
    for _ in range(3):
        x = x.sin()
        print("mean", x.mean())
    return x.cos()


def skipped_after(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    means = []
    for _ in range(3):
        x = x.sin()
        means.append(x.mean())
    return x.cos(), means  # the caller prints


# --8<-- [end:skipped]


# --8<-- [start:repeated]
def repeated_before(x: Tensor) -> Tensor:
    return block(x.sin(), inner_before)


def repeated_after(x: Tensor) -> Tensor:
    return block(x.sin(), inner_after)


def block(x: Tensor, inner: Callable) -> Tensor:
    return inner(x.abs()).tan()


def inner_before(x: Tensor) -> Tensor:
    scale = x.max().item()  # breaks here, in block, and in repeated_before
    return x / scale


def inner_after(x: Tensor) -> Tensor:
    return x / x.max()


# --8<-- [end:repeated]


# --8<-- [start:caught]
def caught_before(x: Tensor) -> Tensor:
    try:
        return x.view(6, 6)
    except RuntimeError:
        return x.flatten()


def caught_after(x: Tensor) -> Tensor:
    return x.view(6, 6) if x.numel() == 36 else x.flatten()


# --8<-- [end:caught]


# --8<-- [start:unguarded]
def unguarded_before(x: Tensor) -> Tensor:
    count = int((x > 0).sum())
    return x * 2 if count > 3 else x


def unguarded_after(x: Tensor) -> Tensor:
    count = (x > 0).sum()
    return torch.where(count > 3, x * 2, x)


# --8<-- [end:unguarded]


# --8<-- [start:disabled]
@torch.compiler.disable
def library_function(x: Tensor) -> Tensor:
    return x.sin()


def calls_disabled(x: Tensor) -> Tensor:
    return library_function(x) + 1


# before: torch.compile(calls_disabled, fullgraph=True)
# after:  torch.compile(calls_disabled)
# --8<-- [end:disabled]


def entries(function: Callable) -> str:
    """How the log's entries begin."""
    with redirect_stdout(StringIO()):
        log = find(function, make_x()).log
    return "\n".join(entry.partition(" in user code")[0] for entry in log) or "no entry"


def reason(function: Callable) -> str:
    """The first entry of the log, without its place and its explanation."""
    with redirect_stdout(StringIO()):
        log = find(function, make_x()).log
    return "\n".join(log[0].splitlines()[1:3]) if log else "no entry"


def error(function: Callable, **options: bool) -> Callable[[], str]:
    return lambda: message(compiled(function, **options), make_x())

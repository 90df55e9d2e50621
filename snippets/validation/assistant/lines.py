"""Lines of somebody's code: which they are, and which of them store something in a module."""

import functools
import inspect
import linecache
import os
import re
import sysconfig
import types
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

LIBRARIES = tuple(
    os.path.realpath(folder) + os.sep for folder in (os.path.dirname(torch.__file__), sysconfig.get_paths()["stdlib"])
)
OURS = os.path.dirname(os.path.realpath(__file__)) + os.sep
ELSEWHERE = re.compile(  # the same in a path of another machine, which a log or a trace has
    r"[/\\](site|dist)-packages[/\\](torch|triton|functorch)[/\\]|[/\\]lib[/\\]python3\.\d+[/\\](?!(site|dist)-packages)"
)
PASSED_OVER = ("einops", "jaxtyping", "beartype")  # their lines explain nothing


@dataclass(frozen=True)
class Line:
    """A line of somebody's code."""

    file: str
    number: int
    function: str = ""

    @property
    def text(self) -> str:
        return linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        return f"{shortened(self.file)}:{self.number}"


def shortened(file: str) -> str:
    """A path as short as it still leads to the file: from the working directory, or from site-packages."""
    installed = f"{os.sep}site-packages{os.sep}"
    if installed in file:
        return file.rpartition(installed)[2]
    return file.removeprefix(os.getcwd() + os.sep)


@functools.cache
def is_ours(file: str) -> bool:
    """Whether a file belongs to this tool."""
    return os.path.realpath(file).startswith(OURS)


@functools.cache
def is_library(file: str) -> bool:
    """Whether a file belongs to PyTorch, to Python or to this tool: its lines are not the author's."""
    if is_ours(file) or file.startswith("<") or ELSEWHERE.search(file):
        return True
    path = os.path.realpath(file)
    after = path.rpartition(f"site-packages{os.sep}")[2].split(os.sep)[0]
    inside = "site-packages" in path and not path.startswith(LIBRARIES[0])
    return after in PASSED_OVER or (path.startswith(LIBRARIES) and not inside)


def lines_that_store(part: nn.Module | type, name: str) -> list[Line]:
    """The lines of a module's methods, its constructor aside, that write to an attribute or put something into it.

    Of a class, the lines that write to an attribute of what its methods get first.
    """
    lines = []
    kinds = (part if isinstance(part, type) else type(part)).__mro__
    methods = {key: value for kind in reversed(kinds) for key, value in vars(kind).items()}
    for key, method in methods.items():
        code = getattr(inspect.unwrap(method) if callable(method) else method, "__code__", None)
        if code is None or key == "__init__" or not code.co_varnames or is_library(code.co_filename):
            continue
        me = code.co_varnames[0]
        stores = re.compile(
            rf"\b{me}\.{name}(\[.*\])?\s*((,\s*{me}\.\w+\s*)+|[-+*/%|&]|//|:[^=]*)?=(?!=)|\b{me}\.{name}\.(append|add|extend|update)\b"
        )
        try:
            source, first = inspect.getsourcelines(code)
        except OSError:  # a class made at run time has no file
            continue
        at = [number for number, text in enumerate(source, first) if stores.search(text)]
        lines += [Line(code.co_filename, number, code.co_name) for number in at]
    return lines


def matching(code: types.CodeType, pattern: str) -> Iterator[Line]:
    """The lines of a function's source that have a pattern."""
    try:
        source, first = inspect.getsourcelines(code)
    except OSError:  # a function made at run time has no file
        return
    for number, text in enumerate(source, first):
        if re.search(pattern, text):
            yield Line(code.co_filename, number, code.co_name)

"""The accuracy minifier: a program with a planted bug, and the graph that is left of it."""

import contextlib
import logging
import os
import re
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

from snippets.compiler import debugging_bugs_compiler
from snippets.compiler.debugging_errors import said
from snippets.compiler.debugging_precision import compiled


# --8<-- [start:minifier]
def model(x: Tensor, weight: Tensor) -> Tensor:
    """The planted lowering among operations that are right."""
    hidden = (x @ weight).tanh()
    return (debugging_bugs_compiler.shifted(hidden) * hidden.cos()).exp() - x.mean()


def minified(function: Callable, *inputs: Tensor) -> str:
    """How the program ends, and the graph that the accuracy minifier is left with. It works with files."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), quietly():
        settings = {"repro_after": "aot", "repro_level": 4, "debug_dir_root": folder}
        with torch._dynamo.config.patch(settings):
            ended = attempt(lambda: compiled(function, *inputs))
        (launcher,) = Path(folder).rglob("minifier_launcher.py")
        with mock.patch.object(sys, "argv", [str(launcher), "minify", "--no-isolate"]):
            runpy.run_path(str(launcher), run_name="__main__")
        repro = Path("repro.py").read_text()
    graph = re.search(r"    def forward\(.*?\n(?=\n?def load_args)", repro, re.DOTALL)
    return f"{ended}\n\n{graph[0].rstrip() if graph else 'no graph'}"


# --8<-- [end:minifier]
@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without what is printed and logged on the way."""
    logging.disable(logging.ERROR)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield
    logging.disable(logging.NOTSET)


def attempt(run: Callable[[], object]) -> str:
    """What a call returns, or what it raises."""
    try:
        return str(run())
    except Exception as error:  # noqa: BLE001  # whatever it raises is what is shown
        return f"{type(error).__name__}: {said(error)}"

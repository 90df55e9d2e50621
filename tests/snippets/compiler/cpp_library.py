"""Where a compiler links the C++ library into what it builds, PyTorch's process does not survive what it loads."""

import os
import re
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

PROBE = "snippets.compiler.ahead_of_time_linked"


def skip_where_it_is_twice(script: Callable[..., CompletedProcess[str]]) -> None:
    """Skip where a package built with the usual options asks for no C++ library and could not be loaded.

    The page's own script finds out, once for all tests.
    """
    printed = script(PROBE, "cpu").stdout
    if ended := re.search(r"^the usual options +no +(?!returns)(.+)", printed, re.MULTILINE):
        compiler = os.path.basename(os.environ.get("CXX") or "g++")
        pytest.skip(f"{compiler} links the C++ library into what it builds, and loading that ended here: {ended[1]}")

"""Errors of the compiler can be suppressed."""

import pytest
import torch

from snippets.compiler.debugging_errors import provoke
from snippets.compiler.debugging_errors_compiler import failing_backend


def test_suppressed_errors_run_eagerly():
    with torch._dynamo.config.patch(suppress_errors=True), pytest.raises(AssertionError, match="no error"):
        provoke(failing_backend)

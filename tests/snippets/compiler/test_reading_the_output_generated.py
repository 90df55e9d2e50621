"""What goes wrong is told, and a trace ends in its line."""

import pytest
import torch

from snippets.compiler.reading_the_output_generated import generate, line_of
from snippets.compiler.reading_the_output_triton import body


def test_what_goes_wrong_is_told():
    with pytest.raises(Exception, match="einsum"):
        generate(lambda x: torch.einsum("abc,de", x), ((4,),), torch.float32)


def test_a_trace_ends_in_its_line():
    assert line_of('  File "a.py", line 3, in f\n    y = x @ w\n        ^^^^^\n') == "y = x @ w"
    assert body("import triton\n\n@triton.jit\ndef kernel(): pass\n").startswith("@triton.jit")

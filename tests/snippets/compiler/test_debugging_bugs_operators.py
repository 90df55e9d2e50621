"""opcheck finds the broken promises."""

import re

import pytest
import torch

from snippets.compiler.debugging_bugs import make_x
from snippets.compiler.debugging_bugs_compiler import halve
from snippets.compiler.debugging_bugs_operators import by_column, changes, precise, scale_
from tests.snippets.compiler.test_debugging_symptoms import OLD, known


@known
@pytest.mark.parametrize(
    ("operator", "arguments", "words"),
    [
        (changes, (make_x(),), "Shapes torch.Size([7, 4]) and torch.Size([8, 4]) are not equal!"),
        (scale_, (make_x(), 0.5), "Argument x is not defined as mutable but was mutated"),
        (precise, (make_x(),), "Dtypes torch.float64 and torch.float32 are not equal!"),
        (by_column, (make_x(),), "Stride mismatch!"),
        (halve, (make_x(),), ""),  # a decomposition of Inductor is none of its promises
    ],
)
def test_opcheck_finds_the_broken_promises(operator, arguments, words):
    if not words or (operator is by_column and OLD):  # it does not compare strides yet
        torch.library.opcheck(operator, arguments)
    else:
        with pytest.raises(Exception, match=re.escape(words)):
            torch.library.opcheck(operator, arguments)

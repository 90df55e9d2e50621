"""Without the planted pass nothing is wrong."""

from snippets.compiler.debugging import bisect
from snippets.compiler.debugging_bugs import make_x
from snippets.compiler.debugging_bugs_compiler import damped


def test_without_the_pass_nothing_is_wrong():
    assert bisect(damped, make_x()).first == ""

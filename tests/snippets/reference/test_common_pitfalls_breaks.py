"""The error that the compiler does not let a function catch is one that eager code catches."""

import pytest

from snippets.reference.common_pitfalls_breaks import make_x


def test_the_error_that_is_not_caught_is_caught_in_eager():
    """The pitfall is the compiler's: without it the operation raises what the code catches."""
    with pytest.raises(RuntimeError) as error:
        make_x().view(6, 6)
    assert "invalid for input of size 32" in str(error.value)

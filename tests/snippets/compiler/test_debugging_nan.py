"""The first operation that is not finite is named."""

import torch

from snippets.compiler.debugging_nan import angle, angle_clamped, first_not_finite, parallel


def test_the_first_operation_that_is_not_finite_is_named_with_its_line():
    a, b = (x.float() for x in parallel())
    assert first_not_finite(angle, a, b) == "acos, in the line: return cosine.acos()"
    assert first_not_finite(angle_clamped, a, b) == "all are finite"
    torch.testing.assert_close(angle_clamped(a, b), torch.zeros(4), atol=1e-3, rtol=0)

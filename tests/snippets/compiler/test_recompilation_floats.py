"""The disk cache and a float inside eps."""

import pytest
import torch

from snippets.compiler.recompilation_floats import errors_of_floats


@pytest.mark.skipif(not torch._functorch.config.enable_autograd_cache, reason="the environment turns the cache off")
def test_the_compilers_cache_keeps_an_early_value_of_a_float_inside_eps():
    """Fixed in PyTorch? Then the page's warning goes."""
    scales = [1.0, 2.0, 3.0]
    assert max(errors_of_floats(scales, cached=False)) < 1e-5
    assert min(errors_of_floats(scales, cached=True)[2:]) > 0.01

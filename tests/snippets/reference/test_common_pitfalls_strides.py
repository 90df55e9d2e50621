"""The kernel is right where the layout is as it assumes."""

import pytest
import torch

from snippets.reference.common_pitfalls_breaks import make_x
from snippets.reference.common_pitfalls_strides import strides_before


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's tensors are on the CPU")
def test_the_kernel_is_right_where_the_layout_is_as_it_assumes():
    assert torch.equal(strides_before(make_x()), 2 * make_x())

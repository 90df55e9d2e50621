"""A product fuses with a bias and with no scatter."""

import torch

from snippets.compiler.fusion_asked import column_softmax, product_and_bias, product_and_scatter
from snippets.compiler.fusion_plan import plan
from tests.snippets.compiler.test_fusion import ROWS

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_a_bias_alone_joins_the_product_because_the_library_has_a_call_for_both():
    """A rewriting of the graph, and no fusion: the kernel is the library's."""
    (kernel,) = plan(product_and_bias, torch.randn(256, 256, device=DEVICE))
    assert not kernel.written


def test_a_product_is_not_fused_with_a_scatter():
    kernels = plan(product_and_scatter, torch.randn(256, 256, device=DEVICE))
    assert [kernel.makes for kernel in kernels if not kernel.written] == [("mm",)] and len(kernels) >= 3


def test_a_softmax_down_the_columns_is_several_kernels():
    assert len(plan(column_softmax, torch.randn(ROWS, ROWS, device=DEVICE))) > 1

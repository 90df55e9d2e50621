"""Each program whose kernels fill the step computes what its mend computes."""

import torch
from torch.nn.functional import gelu

from snippets.validation.diagnosis_kernels import gelu_by_hand, inputs, layers


def test_what_is_fused_is_gelu():
    x = torch.randn(1000, dtype=torch.float64)
    torch.testing.assert_close(gelu_by_hand(x), gelu(x, approximate="tanh"), rtol=0, atol=1e-8)


def test_products_in_bfloat16_are_those_in_float32():
    x, weights = inputs(torch.device("cpu"), torch.float32)
    exact = layers(x, weights)
    rough = layers(x.bfloat16(), [weight.bfloat16() for weight in weights]).float()
    assert (rough - exact).norm() < 0.02 * exact.norm()

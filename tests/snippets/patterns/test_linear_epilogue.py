"""A matmul with bias and GELU in one kernel is the same function."""

import pytest
import torch
import torch.nn.functional as F

from snippets.patterns import linear_epilogue
from snippets.patterns.compare_levels import compare
from tests.snippets.patterns.components import DEVICE


def test_results_are_about_one_in_size() -> None:
    """So that neither an activation nor a bias is lost beside the product."""
    torch.manual_seed(0)
    x, weight, bias = linear_epilogue.linear_gelu_inputs((256, 128), torch.float32, DEVICE).values()
    product, of_bias = F.linear(x, weight).std().item(), bias.std().item()
    assert 0.9 < product < 1.1
    assert 0.8 < of_bias < 1.2


@pytest.mark.skipif(DEVICE.type == "cpu", reason="on a CPU the private operation computes GELU with erf")
def test_the_epilogue_is_the_same_function() -> None:
    inputs = linear_epilogue.linear_gelu_inputs((64, 128), torch.bfloat16, DEVICE)
    functions = {"native": linear_epilogue.linear_gelu_native, "epilogue": linear_epilogue.linear_gelu_epilogue}
    assert compare(functions, inputs, rounds=0).agree

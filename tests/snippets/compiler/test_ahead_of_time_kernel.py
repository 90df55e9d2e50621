"""Which way of calling a Triton kernel survives a package."""

import pytest
import torch

from snippets.compiler.ahead_of_time_kernel import Adds, add_opaque, add_seen, package_and_call
from tests.snippets.compiler.cpp_library import skip_where_it_is_twice

MODULE = "snippets.compiler.ahead_of_time_kernel"
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="a Triton kernel is packaged on a GPU")


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_without_a_gpu_it_says_so(script):
    assert script(MODULE).stdout == "a Triton kernel in a package needs a GPU\n"


def test_an_opaque_operator_is_a_name_in_the_program():
    program = torch.export.export(Adds(add_opaque), (torch.ones(8),))
    assert "ridgepoint.add_opaque" in program.graph_module.code


@GPU
def test_a_kernel_that_the_compiler_sees_is_in_the_package_and_an_opaque_one_is_not(script, tmp_path):
    skip_where_it_is_twice(script)
    kernels, said = package_and_call(add_seen, tmp_path / "seen.pt2")
    assert kernels > 0 and said == "right"
    _, said = package_and_call(add_opaque, tmp_path / "opaque.pt2")
    assert "Could not find schema" in said

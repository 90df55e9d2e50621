"""The two functions have as many kernels, of many kinds and of one; and which process compiles them."""

import json

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor.utils import fresh_cache

from snippets.compiler.compile_time_workers import alike, distinct, first_call, measured

MODULE = "snippets.compiler.compile_time_workers"
GPU = torch.cuda.is_available()


@pytest.mark.parametrize(("function", "widths"), [(distinct, 3), (alike, 1)])
def test_the_softmaxes_are_of_many_widths_or_of_one(function, widths):
    torch.compiler.reset()
    counter = CompileCounterWithBackend("eager")
    x = torch.randn(192, 192)
    results = torch.compile(function, backend=counter)(x, 3)
    for result, expected in zip(results, function(x, 3), strict=True):
        torch.testing.assert_close(result, expected)
    (graph,) = counter.graphs
    softmaxes = [node.meta["example_value"].shape for node in graph.graph.nodes if "softmax" in str(node.target)]
    assert len(softmaxes) == 3 and len(set(softmaxes)) == widths


def test_without_a_gpu_it_says_that_there_is_nothing_to_see(script):
    done = script(MODULE, "cpu")
    assert done.returncode == 0 and "without a GPU" in done.stdout and "====" not in done.stdout


@pytest.mark.skipif(not GPU, reason="Triton's kernels need a GPU")
def test_kernels_that_are_alike_are_compiled_once():
    torch.compiler.reset()
    with fresh_cache():
        few, many = (first_call(what, 4, wait=False)["compiled"] for what in ("alike", "distinct"))
    assert few == 1 and many == 4


@pytest.mark.skipif(not GPU, reason="Triton's kernels need a GPU")
def test_one_worker_is_none():
    found = measured("distinct", 4, False, TORCHINDUCTOR_COMPILE_THREADS="1")
    assert found["compiled"] == 4 and found["by workers"] == 0, json.dumps(found)

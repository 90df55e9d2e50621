"""Variants that compile the same function share nothing of what is compiled."""

from dataclasses import replace

import pytest
import torch

from tests.benchmarks.compiler import ahead_of_time
from tests.benchmarks.own import own
from tests.benchmarks.runner import discover, load
from tests.benchmarks.test_wrong import CPU

READ = "tests/benchmarks", "snippets/**/*.py"  # by what finds the cases


def double(x: torch.Tensor, *, factor: int = 2) -> torch.Tensor:
    return x * factor


def test_a_copy_computes_the_same_and_has_graphs_of_its_own():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    torch.compiler.reset()
    for function in (double, own(double), own(double)):
        for _ in range(2):
            assert torch.compile(function, backend=backend)(torch.ones(2)).tolist() == [2, 2]
    assert len(graphs) == 3


@pytest.mark.parametrize("name", [name for name in discover() if name.startswith("compiler/")])
def test_what_a_case_compiles_has_code_of_its_own(name, monkeypatch):
    """A package is exported and not made: that takes a minute, and goes past torch.compile."""
    monkeypatch.setattr(ahead_of_time, "packaged", ahead_of_time.packaged.__wrapped__)  # what stands in is not kept
    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", lambda program, package_path: package_path)
    monkeypatch.setattr(torch._inductor, "aoti_load_package", lambda path: torch.nn.Identity())
    codes = []  # kept: an address may be used again

    def compile(function=None, **options):
        if function is None:  # a compiler for compiled autograd
            return compile
        codes.append(function.__code__)
        return function

    monkeypatch.setattr(torch, "compile", compile)
    case = load(discover()[name])
    forwards = {(point.part, str(point.shape)): replace(point, direction="forward") for point in case.checked()}
    for point in forwards.values():
        for variant in case.prepare(point, CPU).variants.values():
            variant.build()
        assert codes or point.part.startswith("operator"), "an operator that is called by itself is not compiled"
        for seen in codes:
            assert sum(code is seen for code in codes) == 1, seen.co_name
        codes.clear()

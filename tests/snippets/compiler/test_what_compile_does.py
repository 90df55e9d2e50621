"""The compiler's stages, on the page's function: what each makes of it, and that the result stays the same."""

import re
from types import SimpleNamespace

import pytest
import torch

from snippets.compiler import what_compile_does
from snippets.compiler.what_compile_does import first_and_later, generated_kernels, unit_rows
from snippets.validation.equivalence import check
from tests.snippets.compiler.test_what_compile_does_traffic import make_inputs

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_each_row_has_length_one():
    lengths = unit_rows(*make_inputs()).norm(dim=-1)
    torch.testing.assert_close(lengths, torch.ones_like(lengths))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("columns", ([1024] if DEVICE == "cuda" else []) + [1000, 1])  # C++ takes whole vectors first
def test_the_compiled_function_is_the_same_function(columns, dtype):
    inputs = make_inputs(64, columns, dtype)
    exact = unit_rows(*(tensor.double() for tensor in inputs))
    torch.compiler.reset()
    results = {"output": torch.compile(unit_rows)(*inputs)}
    check(results, {"output": unit_rows(*inputs)}, {"output": exact})


def test_inductor_writes_one_kernel():
    (kernel,) = generated_kernels(unit_rows, *make_inputs(columns=1024))
    assert kernel.startswith("@triton.jit" if DEVICE == "cuda" else "#include")
    pointers = set(re.findall(r"\b\w*_ptr\d+\b", kernel))
    assert {"in_ptr0", "in_ptr1", "in_ptr2"} <= pointers  # x, y and bias
    assert len(pointers) <= 5, "besides the result and one number a row, something is written"


def test_the_first_call_compiles_and_later_ones_do_not(monkeypatch):
    """A compilation takes a minute here, and nothing else takes any time."""
    clock, compiled, compile = [0.0], [], torch.compile

    def slowly(graph, inputs):
        clock[0] += 60
        compiled.append(graph)
        return graph

    def timed(call, device):
        before = len(compiled)
        call()
        return before, len(compiled)

    monkeypatch.setattr(torch, "compile", lambda function: compile(function, backend=slowly))
    monkeypatch.setattr(what_compile_does, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(what_compile_does, "seconds_per_call", timed)
    assert first_and_later(unit_rows, *make_inputs()) == (60, (1, 1))

"""The compiler's stages, on the page's function: what each makes of it, and that the result stays the same."""

import re
from types import SimpleNamespace

import pytest
import torch

from snippets.compiler import what_compile_does
from snippets.compiler.what_compile_does import (
    Traffic,
    autograd_graphs,
    captures,
    dynamo_graph,
    first_and_later,
    generated_kernels,
    readable,
    unit_rows,
)
from snippets.validation.equivalence import check

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def make_inputs(rows: int = 32, columns: int = 256, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = (rows, columns), (rows, columns), (columns,)
    return [torch.randn(shape, device=DEVICE).to(dtype) for shape in shapes]


def operations(graph: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op.startswith("call")]


def test_each_row_has_length_one():
    lengths = unit_rows(*make_inputs()).norm(dim=-1)
    torch.testing.assert_close(lengths, torch.ones_like(lengths))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("columns", [1024, 1000, 1])
def test_the_compiled_function_is_the_same_function(columns, dtype):
    inputs = make_inputs(64, columns, dtype)
    exact = unit_rows(*(tensor.double() for tensor in inputs))
    torch.compiler.reset()
    results = {"output": torch.compile(unit_rows)(*inputs)}
    check(results, {"output": unit_rows(*inputs)}, {"output": exact})


def test_eager_traffic_is_what_the_page_counts():
    rows, columns, width = 32, 256, 4
    inputs = make_inputs(rows, columns)
    with Traffic() as traffic:
        unit_rows(*inputs)
    whole, row, column = rows * columns * width, columns * width, rows * width
    assert traffic.operations == [
        ("aten.add.Tensor", whole + row, whole),
        ("aten.relu.default", whole, whole),
        ("aten.pow.Tensor_Scalar", whole, whole),
        ("aten.add.Tensor", 2 * whole, whole),
        ("aten.linalg_vector_norm.default", whole, column),
        ("aten.div.Tensor", whole + column, whole),
    ]


def test_dynamo_captures_the_operations_as_they_were_written():
    graph = dynamo_graph(unit_rows, *make_inputs())
    calls = [node.name for node in graph.graph.nodes if node.op.startswith("call")]
    assert calls == ["add", "relu", "square", "hidden", "norm", "truediv"]


def test_a_new_shape_or_dtype_is_captured_again_and_a_third_shape_is_not():
    x, y, bias = make_inputs()
    calls = [(x[:rows], y[:rows], bias) for rows in (8, 8, 16, 24)]
    calls.append((x[:8].double(), y[:8].double(), bias.double()))
    assert captures(unit_rows, calls) == [1, 1, 2, 2, 3]


def test_autograd_decomposes_and_keeps_inputs_and_one_number_a_row():
    forward, backward = autograd_graphs(unit_rows, *make_inputs(rows=32))
    assert "aten.linalg_vector_norm.default" not in operations(forward)
    assert operations(forward)[-4:] == [
        "aten.pow.Tensor_Scalar",
        "aten.sum.dim_IntList",
        "aten.pow.Tensor_Scalar",
        "aten.div.Tensor",
    ]
    _, *kept = forward.graph.output_node().args[0]
    computed = [node for node in kept if node.op != "placeholder"]
    assert [tuple(node.meta["val"].shape) for node in computed] == [(32, 1)]
    assert "aten.relu.default" in operations(backward)  # computed again rather than kept
    gradients = backward.graph.output_node().args[0]
    assert sorted(tuple(node.meta["val"].shape) for node in gradients) == [(32, 256), (32, 256), (256,)]


def test_inductor_writes_one_kernel():
    (kernel,) = generated_kernels(unit_rows, *make_inputs(columns=1024))
    assert kernel.startswith("@triton.jit" if DEVICE == "cuda" else "#include")
    pointers = set(re.findall(r"\b\w*_ptr\d+\b", kernel))
    assert {"in_ptr0", "in_ptr1", "in_ptr2"} <= pointers  # x, y and bias
    assert len(pointers) <= 5, "besides the result and one number a row, something is written"


def test_a_listing_shows_source_lines_without_paths():
    text = readable(dynamo_graph(unit_rows, *make_inputs()))
    assert "# hidden = x + F.relu(y + bias).square()" in text
    assert "/" not in text.replace(" / ", "") and "= None" not in text


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

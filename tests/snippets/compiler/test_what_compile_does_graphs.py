"""What Dynamo captures, and what AOTAutograd makes of it."""

import torch

from snippets.compiler.what_compile_does import unit_rows
from snippets.compiler.what_compile_does_graphs import autograd_graphs, captures, dynamo_graph, readable
from tests.snippets.compiler.test_what_compile_does_traffic import make_inputs


def operations(graph: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op.startswith("call")]


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


def test_a_listing_shows_source_lines_without_paths():
    text = readable(dynamo_graph(unit_rows, *make_inputs()))
    assert "# hidden = x + F.relu(y + bias).square()" in text
    assert "/" not in text.replace(" / ", "") and "= None" not in text

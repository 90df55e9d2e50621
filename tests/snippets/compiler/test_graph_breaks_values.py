"""What the page says of values: cond, fullgraph, explain."""

import torch

from snippets.compiler import graph_breaks_values
from snippets.compiler.graph_breaks import find
from snippets.compiler.graph_breaks_mended import make_x


def test_cond_captures_both_sides_in_one_graph():
    found = find(graph_breaks_values.branch_cond, make_x())
    assert found.log == [] and len(found.graphs) == 1
    for shift in (0.0, -1.5):
        x = make_x() + shift
        torch.testing.assert_close(graph_breaks_values.branch_cond(x), graph_breaks_values.branch_before(x))


def test_fullgraph_captures_an_item_and_so_does_a_setting():
    torch.compiler.reset()
    torch.compile(graph_breaks_values.item_before, backend="aot_eager", fullgraph=True)(make_x())
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        assert find(graph_breaks_values.item_before, make_x()).log == []


def test_fullgraph_captures_an_output_whose_shape_depends_on_values():
    def positive(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0].sum()

    assert len(find(positive, make_x()).log) == 1
    torch.compiler.reset()
    torch.testing.assert_close(
        torch.compile(positive, backend="aot_eager", fullgraph=True)(make_x()), positive(make_x())
    )


def test_explain_names_a_reason_where_no_graph_follows():
    explained = torch._dynamo.explain(lambda x: x.sin()[x > 0])(make_x())
    assert explained.graph_break_count == 0 and len(explained.break_reasons) == 1


def test_explain_has_other_words_for_a_branch():
    (reason,) = torch._dynamo.explain(graph_breaks_values.branch_before)(make_x()).break_reasons
    assert reason.reason == "generic_jump TensorVariable()"

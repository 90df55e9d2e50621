"""Compiled autograd makes one graph of a backward in three."""

from snippets.compiler.training_backward import backward_graphs


def test_compiled_autograd_makes_one_graph_of_a_backward_in_three():
    assert [len(backward_graphs(compiled_autograd)) for compiled_autograd in (False, True)] == [3, 1]

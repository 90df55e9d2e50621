"""A logger can be ignored, and a print can wait."""

import torch

from snippets.compiler import graph_breaks_python
from snippets.compiler.graph_breaks import cause, find
from snippets.compiler.graph_breaks_mended import make_x

TORCH = tuple(map(int, torch.__version__.split(".")[:2]))


def test_a_logger_can_be_ignored():
    with torch._dynamo.config.patch(ignore_logging_functions={graph_breaks_python.log.info}):
        assert find(graph_breaks_python.logging_before, make_x()).log == []


def test_a_print_can_wait_but_not_with_keywords(capsys):
    """They are dropped; from torch 2.14 on, such a call breaks."""

    def progress(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        print("step", end=" ")
        return x.cos()

    with torch._dynamo.config.patch(reorderable_logging_functions={print}):
        found = find(progress, make_x())
    breaks = TORCH >= (2, 14)
    assert capsys.readouterr().out == ("step " if breaks else "step\n")
    assert [cause(entry) for entry in found.log] == [
        "attempted to reorder a debugging function that can't actually be reordered"
    ] * breaks

"""Counters and dictionaries of a module count right."""

import torch

from snippets.compiler import graph_breaks_modules
from snippets.compiler.graph_breaks import find
from snippets.compiler.graph_breaks_mended import make_x


def test_counters_and_dictionaries_of_a_module_do_not_break_and_count_right():
    module = graph_breaks_modules.MutationAfter()
    found = find(module, make_x())
    assert found.log == [] and module.calls == 1
    torch.testing.assert_close(module.seen["mean"], make_x().sin().mean())

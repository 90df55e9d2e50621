"""Lines: which are the author's, and which store something."""

import pytest
import torch

from snippets.validation.assistant.trace import traced
from tests.snippets.validation.planted import memory
from tests.snippets.validation.planted.seen import made

pytestmark = pytest.mark.usefixtures("one_core")


def test_a_result_that_the_module_stores_with_its_graph_is_found_at_the_line():
    held = traced(made(lambda: (memory.KeepsHistory(), torch.randn(4, 64)))).held
    assert [line.text for line in held] == ["self.history.append(h)  # fault: kept-graph"]

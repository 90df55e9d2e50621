"""A row per node is multiplied instead of a row per edge."""

from snippets.start.your_model import SMALL
from tests.snippets.start.test_your_model import both, counted


def test_a_row_per_node_is_multiplied_instead_of_a_row_per_edge() -> None:
    before, after = (counted(call).rows for call in both("graph network"))
    assert before == 16 * after == 16 * SMALL["graph network"]["rows"]

"""The page's trace: Python takes most of the step."""

from snippets.validation.assistant.reads import read_all
from snippets.validation.assistant_reads import traced

VARIES = {"": r"longest operation: .*|\d[\d.]*"}  # measured, and two operations are about as long


def test_python_is_the_largest_loss_at_its_line(tmp_path):
    traced(tmp_path / "trace.json")
    first = read_all([tmp_path / "trace.json"]).losses[0]
    assert first.cause == "python" and first.line.function == "batch_of"

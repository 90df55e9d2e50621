"""A number compiles again in each call, in the words of the page, and its fix has the counts of the page."""

import re
from pathlib import Path

import pytest

from snippets.compiler.recompilation import said
from snippets.compiler.recompilation_values import VALUES, count

PAGE = Path(__file__).parents[3] / "docs" / "pages" / "compiler" / "recompilation.md"


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value.before.__name__.removesuffix("_before"))
def test_a_value_has_the_counts_and_the_words_of_the_page(value):
    with said():
        before, reasons = count(value.before)
        after, _ = count(value.after)
    rows = re.findall(r"^\| `(.+?)` \|.*\| (\d+) → (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    assert (value.symptom, str(before), str(after)) in rows
    assert any(value.symptom in reason for reason in reasons)


def test_a_backend_that_compiles_nothing_shows_too_few():
    """A float that is no factor becomes a constant again in AOTAutograd, which that backend leaves out."""
    counts = {value.symptom: (count(value.before, "eager")[0], count(value.before)[0]) for value in VALUES}
    assert {symptom for symptom, (captured, compiled) in counts.items() if captured < compiled} == {
        "limit == 0.5",
        "['lr'] == 0.1",
        "['betas'][0] == 0.95",
    }

"""What is compiled again and what mends it, as the page says it: counted, on every version of torch."""

import inspect
import re
from pathlib import Path

import pytest
import torch

from snippets.compiler.recompilation import MENDS
from snippets.compiler.recompilation_counter import Counter, count, said
from snippets.compiler.recompilation_specialised import double
from snippets.compiler.recompilation_values import VALUES

PAGE = Path(__file__).parents[3] / "docs" / "pages" / "compiler" / "recompilation.md"
TORCH = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))


def rows_of_the_page() -> dict[str, tuple[int, int]]:
    """The table of symptoms: its words in code, and the counts in its last column."""
    found = re.findall(r"^\| `(.+?)` \|.*\| (\d+) → (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    return {words: (int(before), int(after)) for words, before, after in found}


COMPILED = {value.symptom for value in VALUES}  # whose counts on the page are those of a backend that compiles


def test_the_table_of_symptoms_has_every_mend():
    assert set(rows_of_the_page()) == {mend.symptom for mend in MENDS} | COMPILED


@pytest.mark.parametrize("mend", MENDS, ids=lambda mend: mend.before.__name__.removesuffix("_before"))
def test_a_mend_has_the_counts_and_the_words_of_the_page(mend):
    with said():
        before, reasons = count(mend.before)
        after, _ = count(mend.after)
    if mend.symptom not in COMPILED:
        assert (before, after) == rows_of_the_page()[mend.symptom]
    assert any(mend.symptom in reason for reason in reasons)


def test_entries_and_a_limit_of_ones_own_are_newer_than_torch_2_11():
    options = inspect.signature(torch.compile).parameters
    bounds = inspect.signature(torch._dynamo.decorators.mark_unbacked).parameters
    for name, where in (("recompile_limit", options), ("isolate_recompiles", options), ("max", bounds)):
        assert name not in where if TORCH == (2, 11) else TORCH < (2, 13) or name in where


@pytest.mark.skipif(TORCH < (2, 13), reason="torch.compile has no isolate_recompiles")
def test_isolated_compilations_share_nothing():
    counter = Counter()
    torch.compiler.reset()
    for _ in range(3):
        torch.compile(double, backend=counter, isolate_recompiles=True)(torch.ones(5))
    assert counter.compiled == 3

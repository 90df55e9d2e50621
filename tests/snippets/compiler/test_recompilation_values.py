"""A number compiles again in each call, in the words of the page, and its fix has the counts of the page."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from snippets.compiler.recompilation_values import VALUES
from tests.benchmarks.captures import sections

READ = ("tests/forked.py",)  # scripts run in it, and nothing imports it: named here, it counts for tests/remembered.py

PAGE = Path(__file__).parents[3] / "docs" / "pages" / "compiler" / "recompilation.md"
ROW = re.compile(r"(.+?) +(\d+) -> (\d+), captured only: (\d+) +(.+)")


class Row(NamedTuple):
    """What the script says of a number: compilations before, after and without a backend, and the guard that failed."""

    symptom: str
    before: int
    after: int
    captured: int
    reason: str


@pytest.fixture
def rows(script) -> list[Row]:
    done = script("snippets.compiler.recompilation_values")
    assert done.returncode == 0, done.stderr
    found = [ROW.fullmatch(line) for line in sections(done.stdout)["values"].splitlines()]
    return [Row(row[1], *map(int, row.group(2, 3, 4)), row[5]) for row in found if row]


def test_a_value_has_the_counts_and_the_words_of_the_page(rows: list[Row]):
    assert [row.symptom for row in rows] == [value.symptom for value in VALUES]
    told = re.findall(r"^\| `(.+?)` \|.*\| (\d+) → (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    for row in rows:
        assert (row.symptom, str(row.before), str(row.after)) in told
        assert row.symptom in row.reason


def test_a_backend_that_compiles_nothing_shows_too_few(rows: list[Row]):
    """A float that is no factor becomes a constant again in AOTAutograd, which that backend leaves out."""
    assert {row.symptom for row in rows if row.captured < row.before} == {
        "limit == 0.5",
        "['lr'] == 0.1",
        "['betas'][0] == 0.95",
    }

"""The findings of the page on compiled code are there, and what is done against each of them helps."""

import re
from collections.abc import Callable

import pytest

from tests.benchmarks.captures import sections

pytest.importorskip("triton")


@pytest.fixture
def facts(script) -> Callable[[str], list[dict[str, str]]]:
    """Of each command that a finding runs, by the finding's name."""
    printed = sections(script("snippets.validation.compiled_code_findings").stdout)

    def of(finding: str) -> list[dict[str, str]]:
        tables = printed[finding].split("$ python")[1:]
        return [dict(re.findall(r"^([a-z][\w ]*?)  +(.+)$", table, re.MULTILINE)) for table in tables]

    return of


def test_whole_rows_spill_and_two_looks_next_to_nothing(facts):
    whole, looks = (int(found["spilled"]) for found in facts("spill"))
    assert whole > 100 and looks <= 16


def test_counted_in_units_of_eight_accesses_are_wide(facts):
    in_ones, in_eights = facts("narrow")
    assert in_ones["loads"].endswith("of 16 bits") and in_eights["loads"] == "5 of 128 bits"


def test_the_cast_takes_fp64_away(facts):
    without, with_cast = (int(found["fp64"]) for found in facts("fp64"))
    assert without > 0 and with_cast == 0

"""The findings of the page on compiled code are there, and what is done against each of them helps."""

import re

import pytest

pytest.importorskip("triton")

from snippets.validation import compiled_code_findings as findings


def facts(capfd, finding) -> list[dict[str, int | str]]:
    """Of each command that a finding runs."""
    finding()
    tables = capfd.readouterr().out.split("$ python")[1:]
    return [dict(re.findall(r"^([a-z][\w ]*?)  +(.+)$", table, re.MULTILINE)) for table in tables]


def test_whole_rows_spill_and_two_looks_next_to_nothing(capfd):
    whole, looks = (int(found["spilled"]) for found in facts(capfd, findings.spill))
    assert whole > 100 and looks <= 16


def test_counted_in_units_of_eight_accesses_are_wide(capfd):
    in_ones, in_eights = facts(capfd, findings.narrow)
    assert in_ones["loads"].endswith("of 16 bits") and in_eights["loads"] == "5 of 128 bits"


def test_the_cast_takes_fp64_away(capfd):
    without, with_cast = (int(found["fp64"]) for found in facts(capfd, findings.fp64))
    assert without > 0 and with_cast == 0

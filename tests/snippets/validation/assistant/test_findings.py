"""Findings: each kind is in one group, and the same one at the same line is told once."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from snippets.validation import assistant
from snippets.validation.assistant.findings import GROUPS, Finding, ranked
from snippets.validation.assistant.found import find
from snippets.validation.assistant.lines import Line
from tests.snippets.validation.planted import fusion
from tests.snippets.validation.planted.seen import evidence, hits

pytestmark = pytest.mark.usefixtures("one_core")
READ = "snippets/validation/assistant"


def test_the_same_fault_in_every_layer_is_one_finding():
    layers = nn.Sequential(*(fusion.GatedMLP() for _ in range(3)))
    found = hits(find(*evidence(lambda: (layers, fusion.sequence()))))
    assert [(one.kind, one.times) for one in found] == [("gated-mlp", 3)]


def source_of_findings() -> str:
    folder = Path(assistant.__file__).parent
    return "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))


def test_every_kind_is_in_one_group():
    listed = [kind for _, kinds in GROUPS.values() for kind in kinds]
    told = set(re.findall(r'\bFinding\(\s*"([\w-]+)",', source_of_findings()))
    assert sorted(listed) == sorted(told)


def test_faster_products_come_after_what_leaves_products_out_or_was_seen_to_help():
    def one(kind, saves, **more):
        return Finding(kind, kind, (Line("a.py", 1),), "", "", "", saves=saves, **more)

    tf32, rows, copy = one("precision", 9), one("wasted", 3), one("copy", 6)
    assert ranked([rows, tf32, copy]) == [copy, rows, tf32]
    assert ranked([copy, tf32]) == [tf32, copy]
    tried = replace(copy, helps=True)
    assert ranked([tf32, tried]) == [tried, tf32]
    assert ranked([tried, replace(tf32, helps=True)])[0].kind == "precision"

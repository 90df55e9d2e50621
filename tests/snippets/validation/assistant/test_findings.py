"""Findings: each kind is in one group, and the same one at the same line is told once."""

import re
from pathlib import Path

import pytest
from torch import nn

from snippets.validation import assistant
from snippets.validation.assistant.findings import GROUPS
from snippets.validation.assistant.found import find
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

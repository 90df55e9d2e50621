"""Findings: planted faults are found at their lines, and clean twins are left alone."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from snippets.validation import assistant, assistant_findings, assistant_patterns
from snippets.validation.assistant import find
from tests.benchmarks.captures import sections
from tests.snippets.validation.planted import held_out
from tests.snippets.validation.planted.seen import AREAS, CASES, evidence, hits, with_fault

pytestmark = pytest.mark.usefixtures("one_core")


def rows(section: str) -> list[list[str]]:
    """(module, fault, alarms on its twin) of each line of a section of counted.py."""
    lines = section.rstrip("\n").splitlines()[1:]
    return [[line[:24].strip(), line[24:64].strip(), line[64:]] for line in lines]


def test_planted_faults_are_found_at_their_lines_and_clean_twins_are_left_alone(script):
    """Of those held out nothing is demanded: the page shows how many there are."""
    done = script("tests.snippets.validation.planted.counted")
    assert done.returncode == 0, done.stderr
    printed = sections(done.stdout)
    planted, held = rows(printed["planted"]), rows(printed["held out"])
    assert [name for name, *_ in planted] == list(CASES) and [name for name, *_ in held] == list(held_out.CASES)
    missed = [name for name, where, _ in planted if where == "missed"]
    alarmed = [name for name, _, alarms in planted if alarms != "nothing"]
    assert len(planted) >= 30
    assert len(missed) <= 0.05 * len(planted), missed
    assert len(alarmed) <= len(planted) / 20, alarmed
    for label, which in (("known", planted), ("held out", held)):
        (line,) = (line for line in printed["counted"].splitlines() if line.startswith(label))
        found, alarms = (sum(one[place] != none for one in which) for place, none in ((1, "missed"), (2, "nothing")))
        assert line.split()[-6:] == [str(found), "of", str(len(which)), str(alarms), "of", str(len(which))]


def test_every_fault_marks_one_line():
    for area in (*AREAS, held_out):
        text = Path(area.__file__).read_text(encoding="utf-8")
        kinds = re.findall(r"# fault: (.*)$", text, re.MULTILINE)
        assert len(kinds) >= len(area.CASES) - 1  # a fault may stand in two cases
        assert all(re.search(rf'"{kind}",', source_of_findings()) for kind in kinds)


def source_of_findings() -> str:
    return "".join(Path(each.__file__).read_text(encoding="utf-8") for each in (assistant_findings, assistant_patterns))


FOUND_BY = {
    "nan guard": "graph_breaks",
    "counts steps": "recompilations",
    "positions on host": "made_on_host",
    "writes input": "written_inputs",
    "attention": "explicit_attention",
    "three projections": "separate_projections",
    "rms norm": "written_out_norms",
    "norm and gelu": "norm_and_activation",
    "gated mlp": "gated",
    "cross-entropy": "large_vocabulary",
    "rotary, halves": "rotary",
    "pointwise chain": "chains",
    "softmax": "written_out",
    "contiguous heads": "layout_copies",
    "grouped queries": "repeats",
    "pairwise differences": "outsized",
    "one-hot": "one_hot_products",
    "growing path": "growing",
    "history": "kept_graphs",
    "mask as data": "causal_masks",
    "fp32 head": "upcast_products",
    "odd vocabulary": "odd_sizes",
    "step by step": "small_kernels",
    "drops padding": "synchronisations",
}


BUFFER = "make it once, as a buffer of the module"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("positions on host", f"{BUFFER}, or make it where it is used, with device=ids.device"),
        ("constant on host", BUFFER),  # with device= its numbers are copied all the same
        ("table on host", BUFFER),
        ("listed places", BUFFER),
    ],
)
def test_what_is_made_on_the_host_can_be_made_on_the_device_that_its_line_names(name, change):
    (found,) = hits(find(*with_fault(name)))
    assert found.change == change


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("positions.to(ids.device)", "device=ids.device"),
        ("mask.to(device=self.weight.device, dtype=x.dtype)", "device=self.weight.device"),
        ("x = self.tokens(ids) + positions.to(ids.device)", "device=ids.device"),
        ("torch.arange(4, device=q.device), mask.cuda()", "the device= of a tensor that is there already"),
    ],
)
def test_the_device_is_the_one_that_the_authors_line_names(line, expected):
    assert assistant_findings.device_named([SimpleNamespace(text=line)]) == expected


@pytest.mark.parametrize("name", FOUND_BY)
def test_without_its_function_a_fault_is_missed(name, monkeypatch):
    """What finds a fault is the function that says so, and no accident."""
    faulty = with_fault(name)
    assert hits(find(*faulty))
    for names in ("FINDERS", "PATTERNS"):
        left = tuple(each for each in getattr(assistant, names) if each.__name__ != FOUND_BY[name])
        monkeypatch.setattr(assistant, names, left)
    assert not hits(find(*faulty))


def test_every_function_that_finds_has_a_case():
    every = {each.__name__ for each in (*assistant.FINDERS, *assistant.PATTERNS)}
    assert every - set(FOUND_BY.values()) == {"saved_activations", "fp32_products", "dropout_after_softmax"}


def test_large_fp32_products_are_a_finding_and_small_ones_a_note():
    wide = nn.Linear(1024, 2048, bias=False)
    for rows, weight in ((64, "note"), (1024, "finding")):
        found = [
            one for one in find(*evidence(lambda rows=rows: (wide, torch.randn(rows, 1024)))) if one.kind == "precision"
        ]
        assert [one.weight for one in found] == [weight]

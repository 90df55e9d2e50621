"""What is found: planted faults are found at their lines, and clean twins are left alone."""

import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from snippets.validation import assistant
from snippets.validation.assistant import found
from snippets.validation.assistant.finders import attention, readiness
from snippets.validation.assistant.graphs import Captured
from snippets.validation.assistant.report import address
from snippets.validation.assistant.trace import traced
from tests.benchmarks.captures import sections
from tests.benchmarks.source import ROOT
from tests.snippets.validation.planted import held_out, seen
from tests.snippets.validation.planted.seen import AREAS, CASES, made

# Scripts run in the one, and the other is read as text; nothing imports them: named here, they count for remembered.py.
READ = ("tests/forked.py", "snippets/validation/assistant")


pytestmark = pytest.mark.usefixtures("one_core")


def rows(section: str) -> list[list[str]]:
    """(module, fault, alarms on its twin) of each line of a section of counted.py."""
    lines = section.rstrip("\n").splitlines()[1:]
    return [[line[:24].strip(), line[24:64].strip(), line[64:]] for line in lines]


@pytest.fixture
def printed(script) -> dict[str, str]:
    done = script("tests.snippets.validation.planted.counted")
    assert done.returncode == 0, done.stderr
    return sections(done.stdout)


def test_planted_faults_are_found_at_their_lines_and_clean_twins_are_left_alone(printed):
    """Of those held out nothing is demanded: the page shows how many there are."""
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
    folder = Path(assistant.__file__).parent
    return "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))


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


def test_without_its_function_a_fault_is_missed(printed):
    """What finds a fault is the function that says so, and no accident."""
    needed = {line[:24].strip(): line[24:].split(", ") for line in printed["needed"].splitlines()}
    wrong = {name: needed[name] for name, function in FOUND_BY.items() if function not in needed[name]}
    assert not wrong, f"expected the functions of FOUND_BY, got {wrong}"


def test_every_function_that_finds_has_a_case():
    every = {each.__name__ for each in found.FINDERS}
    with_tests_of_their_own = {"cached", "complex_numbers", "constants", "experts", "optimizers"}  # in finders/
    with_tests_of_their_own |= {"repeated", "promoted", "similarities", "picked_late", "sorted_to_pick"}
    with_tests_of_their_own |= {"gathered_first", "copied_weights", "cut_off", "dropped_in_eval", "multiplied_out"}
    with_tests_of_their_own |= {"weights_alone", "same_rows", "one_by_one", "cycles", "tables"}
    with_tests_of_their_own |= {"unrouted", "without_cache", "saved_again"}
    with_tests_of_their_own |= {"summed", "windows", "compared", "shifted", "distributions"}
    told = {"saved_activations", "fp32_products", "dropout_after_softmax"}
    assert every - set(FOUND_BY.values()) == told | with_tests_of_their_own


class Layers(nn.Module):
    """Residual layers; or, if it is one layer only, the turns of a recurrence."""

    def __init__(self, depth, own):
        super().__init__()
        self.depth, self.own = depth, own
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(depth if own else 1))

    def forward(self, x):
        h = x
        for at in range(self.depth):
            h = h + torch.tanh(self.layers[at if self.own else 0](h) + self.layers[0](x))
        return h


def calls_of(finder, trace) -> int:
    """How many calls of functions a finder makes."""
    count = 0

    def see(frame, event, argument):
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        list(finder(trace, Captured()))
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("own", [True, False], ids=["layers", "turns"])
def test_a_finders_work_grows_as_the_calls_do(own):
    few, many = (traced(made(lambda n=n: (Layers(n, own), torch.randn(4, 8)))) for n in (24, 96))
    work = {finder.__name__: (calls_of(finder, few), calls_of(finder, many)) for finder in found.FINDERS}
    assert sum(after for _, after in work.values()) > 10_000
    assert not {name: both for name, both in work.items() if both[1] > 6 * both[0] + 500}


def test_every_page_and_anchor_that_a_finding_or_a_candidate_links_exists():
    text = source_of_findings()
    pages = set(re.findall(r'"((?:compiler|patterns|kernels|validation|examples)/[\w-]+\.md(?:#[\w-]+)?)"', text))
    pages |= {f"{readiness.BREAKS}#{anchor}" for anchor, _ in readiness.CAUSES.values()}
    pages |= {f"{attention.ATTENTION}#{anchor}" for anchor in re.findall(r"\{ATTENTION\}#([\w-]+)", text)}
    assert len(pages) > 20
    for page in pages:
        path, _, anchor = page.partition("#")
        text = (ROOT / "docs/pages" / path).read_text(encoding="utf-8")
        assert not anchor or anchor in anchors_of(text), page
        assert address(page).startswith("https://ridgepoint-guide.github.io/ridgepoint/")


def anchors_of(text: str) -> set[str]:
    """The anchors of a page's headings, as MkDocs makes them."""
    anchors = set()
    for heading in re.findall(r"^#{2,4} (.*)$", text, re.MULTILINE):
        own = re.search(r"\{ #([\w-]+) \}", heading)
        plain = re.sub(r"[^\w\s-]", "", heading.lower())
        anchors.add(own.group(1) if own else re.sub(r"[\s-]+", "-", plain.strip()))
    return anchors


class Small(nn.Module):
    """A norm by hand of a few numbers before large products, or of all that they give."""

    def __init__(self, large):
        super().__init__()
        self.large, self.f = large, nn.Sequential(*(nn.Linear(64, 64) for _ in range(400)))

    def forward(self, x):
        rows = x if self.large else x[:2, :8]
        normed = rows * (rows.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        return self.f(x + normed if self.large else x) + normed.sum()


@pytest.mark.parametrize("large", [True, False])
def test_what_saves_next_to_nothing_is_no_finding(large):
    named = [one.kind for one in found.find(*seen.recorded(lambda: (Small(large), torch.randn(512, 64))))]
    assert ("norm" in named) is large

"""Each loss links a section of this site that treats it."""

import re

import pytest

from snippets.validation.assistant.finders.readiness import BREAKS
from snippets.validation.assistant.finders.readiness import CAUSES as BREAK_CAUSES
from snippets.validation.assistant.lines import Line
from snippets.validation.assistant.losses import CAUSES, MOST, Loss, Reading
from snippets.validation.assistant.report import WIDTH
from tests.benchmarks.source import ROOT

TREATS = {  # by cause: what the section has to name
    "waiting": r"\.item\(\)", "launching": "reduce-overhead", "starting": "`starting`", "python": "Python between",
    "loading": "num_workers", "pageable": "Pageable", "copying": "uint8", "compiling": "dynamo_timed",
    "network": "NCCL.*\n.*\n.*overlap with compute", "rank": "wait for a slower rank", "memory": "Fuse",
    "optimizer": "fused=True", "fp32": "set_float32_matmul_precision",
    "recompilation": "TORCH_LOGS=recompiles", "limit": r"torch\._dynamo hit config\.recompile_limit",
    "cuda-graph": "skip",
}  # fmt: skip


def section(page: str) -> str:
    """From the heading with the page's anchor to the next of its rank."""
    path, _, anchor = page.partition("#")
    text = (ROOT / "docs" / "pages" / path).read_text(encoding="utf-8")
    match = re.search(rf"^(#+) .*\{{ #{anchor} \}}$", text, re.MULTILINE)
    assert match, f"{page}: no such heading"
    return re.split(rf"^#{{1,{len(match[1])}}} ", text[match.end() :], maxsplit=1, flags=re.MULTILINE)[0]


def test_every_cause_is_tested():
    assert TREATS.keys() == CAUSES.keys()


@pytest.mark.parametrize("cause", TREATS)
def test_the_linked_section_treats_the_cause(cause):
    assert re.search(TREATS[cause], section(CAUSES[cause][2])), CAUSES[cause][2]


@pytest.mark.parametrize(("anchor", "change"), sorted(set(BREAK_CAUSES.values())))
def test_the_linked_section_treats_the_graph_break(anchor, change):
    assert re.search("break|graph", section(f"{BREAKS}#{anchor}"))


def test_a_reading_has_at_most_a_dozen_rows_that_fit():
    line = Line("/a/very/long/path/of/a/file/that/nobody/would/have/train_and_evaluate.py", 3, "step")
    losses = [Loss(cause, 1.0, 0.5, line, 0.5, "detail " * 30) for cause in CAUSES]
    rows = str(Reading("head " * 50, losses, "tail " * 50)).splitlines()
    assert len(rows) <= 2 + 4 * MOST and all(len(row) <= WIDTH for row in rows)
    assert rows[1].startswith("1. 1000.00 ms, 50% of the step: the host waited") and "500.00 ms of it at" in rows[2]

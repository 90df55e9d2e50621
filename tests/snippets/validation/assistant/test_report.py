"""Reports: for people, for programs, and as a page that stands alone in the site's colours."""

import json
import re

import pytest
import torch
from torch import nn

from snippets.validation.assistant import analyze, validate
from snippets.validation.assistant import report as reports
from snippets.validation.assistant.report import as_html, as_json, as_text
from tests.benchmarks.source import ROOT
from tests.snippets.validation.planted import fusion

pytestmark = pytest.mark.usefixtures("one_core")


@pytest.fixture(scope="module")
def report():
    torch.manual_seed(0)
    return analyze(fusion.AttentionWritten(), fusion.sequence())


def test_the_report_names_lines_reasons_and_pages(report):
    text = as_text(report)
    assert "1. Attention written out" in text and "scores = q @ k.transpose(-2, -1)" in text
    assert "pages:   https://ridgepoint-guide.github.io/ridgepoint/" in text
    assert "read    patterns/attention/#never-the-whole-square" in text
    assert all(len(line) <= reports.WIDTH for line in text.splitlines())


def test_json_has_all_of_it(report):
    content = json.loads(as_json(report))
    assert content["facts"]["name"] == "AttentionWritten" and content["suggestions"] == []
    first = content["findings"][0]
    assert (
        first["kind"] == "attention"
        and first["lines"][0]["file"].endswith("fusion.py")
        and first["page"].startswith("https")
    )


def test_html_stands_alone_in_the_sites_colours(report):
    page = as_html(report)
    assert page.startswith("<!doctype html>") and "Attention written out" in page
    assert not re.search(r'(src|href)="(?!https://ridgepoint)|@import|url\(', page)
    palette = json.loads((ROOT / "docs/theme/palette.json").read_text(encoding="utf-8"))
    known = palette["surfaces"] | palette["roles"]
    assert {name: (known[name]["light"], known[name]["dark"]) for name in reports.COLOURS} == reports.COLOURS


def test_html_escapes_what_it_shows(untimed):
    module = nn.Linear(32, 8)
    verdict = validate(module, nn.Linear(32, 8), torch.randn(4, 32), rounds=5)
    verdict.names = ("<script>", "&")
    assert "<script>" not in as_html(verdict) and json.loads(as_json(verdict))["right"] is False


class Derived(nn.Module):
    """torch.func.jacrev takes no hooks on what is saved, so memory is not recorded."""

    def __init__(self):
        super().__init__()
        self.f = nn.Linear(4, 4)

    def forward(self, x):
        return torch.func.jacrev(self.f)(x).sum() + self.f(x).sum()


def test_memory_that_was_not_recorded_is_not_zero():
    report = analyze(Derived(), torch.randn(4))
    assert report.facts.peak is None and "the rest could not be recorded" in as_text(report)
    assert json.loads(as_json(report))["facts"]["saved"] is None


class Slow(nn.Module):
    """Two faults, of which the loop costs the most launches."""

    def forward(self, x):
        rows = torch.stack([row.softmax(-1).sum(0) for row in x])
        return rows + ((x[:, :, None] - x[:, None]).pow(2).sum(-1).mean(-1, keepdim=True) * 0).sum(1)


def test_where_to_start_is_said_of_two_findings():
    text = as_text(analyze(Slow(), torch.randn(16, 64, 64)))
    start = re.search(r"start with finding (\d)", text)[1]
    assert re.search(rf" {start}\. A loop of kernels", text)

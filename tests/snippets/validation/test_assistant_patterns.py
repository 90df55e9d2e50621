"""Patterns: each is told once, in any spelling, with a page that exists."""

import re
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from snippets.validation import assistant_findings, assistant_patterns, assistant_trials
from snippets.validation.assistant import find
from snippets.validation.assistant_report import address
from tests.benchmarks.source import ROOT
from tests.snippets.validation.planted import fusion
from tests.snippets.validation.planted.seen import evidence, faults, hits

pytestmark = pytest.mark.usefixtures("one_core")


def test_the_same_fault_in_every_layer_is_one_finding():
    layers = nn.Sequential(*(fusion.GatedMLP() for _ in range(3)))
    found = hits(find(*evidence(lambda: (layers, fusion.sequence()))))
    assert [(one.kind, one.times) for one in found] == [("gated-mlp", 3)]


def test_softmax_with_dropout_outside_of_attention():
    class Gate(nn.Module):
        def forward(self, x):
            return F.dropout(x.softmax(-1), 0.1)

    assert [one.kind for one in faults(find(*evidence(lambda: (Gate(), torch.randn(8, 64)))))] == ["softmax-dropout"]


def source_of_findings() -> str:
    return "".join(Path(each.__file__).read_text(encoding="utf-8") for each in (assistant_findings, assistant_patterns))


def test_every_page_and_anchor_that_a_finding_links_exists():
    pages = set(
        re.findall(
            r'"((?:compiler|patterns|kernels|validation|reference)/[\w-]+\.md(?:#[\w-]+)?)"', source_of_findings()
        )
    )
    pages |= {f"{assistant_findings.BREAKS}#{anchor}" for anchor, _ in assistant_findings._CAUSES.values()}
    pages |= {
        f"{assistant_patterns.ATTENTION}#{anchor}"
        for anchor in re.findall(r"\{ATTENTION\}#([\w-]+)", source_of_findings())
    }
    for source in (assistant_trials, sys.modules["snippets.validation.assistant_profile"]):
        pages |= set(
            re.findall(
                r'"((?:compiler|patterns|kernels|validation)/[\w-]+\.md(?:#[\w-]+)?)"',
                Path(source.__file__).read_text(encoding="utf-8"),
            )
        )
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


class Turned(nn.Module):
    """A rotary embedding that writes its two halves into a new tensor."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cos", torch.rand(16, 32))
        self.register_buffer("sin", torch.rand(16, 32))

    def forward(self, x):
        turned = torch.empty_like(x)
        turned[..., 0::2] = x[..., 0::2] * self.cos - x[..., 1::2] * self.sin
        turned[..., 1::2] = x[..., 0::2] * self.sin + x[..., 1::2] * self.cos
        return turned


class Mish(nn.Module):
    def forward(self, x):
        return x * torch.tanh(F.softplus(x))


class Lengths(nn.Module):
    def forward(self, x):
        return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-6)


class OverTime(nn.Module):
    def forward(self, x):
        return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)


@pytest.mark.parametrize(
    ("module", "kind", "title"),
    [
        (Turned(), "rotary", "Rotary embedding written out"),
        (Mish(), "written-out", "Mish written out"),
        (Lengths(), "norm", "RMSNorm written out"),
        (OverTime(), "norm", "A norm written out"),
        (nn.MultiheadAttention(64, 4, batch_first=True), "attention", "Attention that makes its weights"),
    ],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
def test_other_spellings(module, kind, title):
    x = fusion.sequence()
    inputs = (x, x, x) if isinstance(module, nn.MultiheadAttention) else (x,)
    found = faults(find(*evidence(lambda: (module, *inputs))))
    assert [(one.kind, one.title.startswith(title)) for one in found] == [(kind, True)]


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def test_sums_with_products_between_them_are_no_chain():
    assert not faults(find(*evidence(lambda: (Residual(), fusion.sequence()))))


class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.utils.parametrizations.spectral_norm(nn.Linear(64, 64))

    def forward(self, x):
        return self.fc(x)


def test_copies_that_pytorch_makes_itself_are_not_the_authors():
    assert not faults(find(*evidence(lambda: (Spectral(), fusion.sequence()))))

"""What a page's macros leave behind: evidence, and blocks that stand aside until the page is converted."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from docs.publish import markup
from docs.publish.evidence import Evidence
from docs.publish.macros.claims import Verdict
from docs.publish.place import Place

MARKED = re.compile(r'<a class="[^"]*rp-stale"[^>]*data-evidence="([^"]+)"[^>]*>[^<]*<small>')


@dataclass
class Page:
    """What a page's macros left behind.

    Attributes:
        case: of the numbers that name none.
        evidence: of its numbers.
        broken: its statements that the records contradict, a line each.
        markdown: blocks of Markdown, to stand where their placeholders are before Markdown is converted.
        html: blocks of finished HTML, to stand where their placeholders are afterwards.
        said: its front matter. `measured_on` is the machine that the page means, where that is not the main one.
    """

    place: Place
    case: str = ""
    broken: list[str] = field(default_factory=list)
    markdown: list[str] = field(default_factory=list)
    html: list[str] = field(default_factory=list)
    said: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.evidence = Evidence(self.place)

    def of(self, case: str) -> "Page":
        """The page as if it were the case's own: its script is the default there, too."""
        return replace(self, place=replace(self.place, path=f"{case}.md"), case=case)

    def put_markdown(self, block: str) -> str:
        """A placeholder for a block, which gets the indentation of the place where the macro stands."""
        self.markdown.append(block)
        return f"\ue002{len(self.markdown) - 1}\ue003"

    def put_statement(self, what: str, found: Sequence[Verdict]) -> str:
        """What warns of the numbers that a statement rests on, as badges; what contradicts it is noted."""
        marks = {mark: None for verdict in found for mark in verdict.marks}
        self.broken += [f"{self.place.path}: {what}: {line}" for verdict in found for line in verdict.against]
        self.evidence.stale += [what] * bool(marks)
        return markup.badges(marks)

    def put_html(self, block: str) -> str:
        """A placeholder for HTML that Markdown must not touch."""
        self.html.append(block)
        return self.put_markdown(f'<div data-rp-block="{len(self.html) - 1}"></div>\n')

    def finish(self, html: str, pins: Mapping[str, str] | None = None) -> str:
        """The page's HTML with its blocks in their places, and the evidence at its end.

        Args:
            pins: the pinned versions; a line says which numbers come from others.
        """
        filled = re.sub(r'<div data-rp-block="(\d+)"></div>', lambda found: self.html[int(found[1])], html)
        versions = ", ".join(_others(self.evidence.software(), pins or {}))
        notes = [f"Some numbers on this page were measured with {versions}."] if versions else []
        if meant := self.said.get("measured_on"):
            of_it = [
                each for each in self.evidence.entries.values() if f"/{meant}.json" in each.get("download_url", "")
            ]
            notes += [f"This page is about the {each['machine']}." for each in of_it[:1]]
        marked = [self.evidence.entries[key] for key in MARKED.findall(filled)]
        when = [f"before the {what} changed" for what in sorted({each.get("stale", "") for each in marked} - {""})]
        when += ["on a busy machine"] * any("busy" in each for each in marked)
        notes += [f"† Measured {' or '.join(when)}."] * bool(when)
        said = f'<p class="rp-versions">{" ".join(notes)}</p>\n' if notes else ""
        return filled + said + self.evidence.script()


def _others(software: Iterable[str], pins: Mapping[str, str]) -> list[str]:
    """The versions that are not the pinned ones: ["torch 2.11.0 (pinned: 2.13.0)"]; builds of one version are alike."""
    found = {text.partition("+")[0] for text in software}
    return [f"{text} (pinned: {pins[name]})" for text in sorted(found)
            if (name := text.partition(" ")[0]) in pins and text != f"{name} {pins[name]}"]  # fmt: skip

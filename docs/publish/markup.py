"""HTML that all kinds of pages share: tables, panels, links."""

import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import jinja2

NONE = "–"
STALE = " <small>stale</small>"  # within a number, behind its text
STALE_ALL = '<span class="rp-badge" title="The code or the timing method has changed since.">stale</span>'
TEMPLATES = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent))
FRONT_MATTER = "---\ntitle: {}\ndescription: {}\nsearch:\n  exclude: true\n---\n\n# {}\n\n"


def front_matter(title: str, description: str) -> str:
    """The head of a generated page, which search leaves out. Its texts may have colons and quotes."""
    return FRONT_MATTER.format(*(json.dumps(text, ensure_ascii=False) for text in (title, description)), title)


def blocks(parts: Iterable[str]) -> str:
    """Markdown of which each part is a block, or several; empty ones are left out."""
    return "".join(f"{part.strip()}\n\n" for part in parts if part)


def badges(words: Iterable[str]) -> str:
    """Words that warn of the number before them."""
    return "".join(f' <small class="rp-badge">{word}</small>' for word in words)


def marks(*numbers: Any) -> list[str]:
    """What warns of some numbers: "stale" if the code or the method of one has changed, "busy" if the machine was."""
    return [mark for mark in ("stale", "busy") if any(getattr(number, mark) for number in numbers)]


def table(
    head: Iterable[str],
    rows: Iterable[tuple[str, Sequence[str]]],
    *,
    words: bool = False,
    remark: bool = False,
    named: bool = True,
    searched: bool = True,
    grid: bool = False,
    stacked: bool = False,
) -> str:
    """A table in a box that scrolls sideways by itself: table.html.j2.

    Args:
        head: the columns' names as HTML; none for a table without a head.
        rows: the id of each line, or "", and its cells as HTML.
        words: the cells are words rather than numbers, and stand on the left.
        remark: the last cell of each line is words, and may wrap.
        named: the first cell of each line is its name.
        searched: the search's index has it.
        grid: it is long and wide: its head and its first column stay in sight, and its lines can be filtered.
        stacked: on a phone the cells of a line stand below each other, each with its column's name.
    """
    classes = "rp-table" + " rp-words" * words + " rp-remark" * remark + " rp-stacked" * stacked
    template = TEMPLATES.get_template("table.html.j2")
    given = {"named": named, "searched": searched, "grid": grid, "stacked": stacked}
    return template.render(classes=classes, head=list(head), rows=rows, **given)


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """A table of names and values (HTML); pairs without a value are left out."""
    return table((), (("", pair) for pair in pairs if pair[1]), words=True)


def panel(
    *,
    what: str,
    body: str,
    source: str,
    title: str = "",
    details: str = "",
    machine: tuple[str, str] | None = None,
    shown: bool = True,
) -> str:
    """A chart or a table with what it shows and where that comes from: panel.html.j2.

    Args:
        what, title: text.
        body, source, details: HTML.
        machine: slug and name of the machine that this panel is of, where the reader may choose.
        shown: before the reader has chosen.
    """
    template = TEMPLATES.get_template("panel.html.j2")
    body, source = _stale_once(body, source)
    return template.render(
        what=what, body=body, source=source, title=title, details=details, machine=machine, shown=shown
    )


def _stale_once(body: str, source: str) -> tuple[str, str]:
    """Where every number of a table is stale, the line below it says so, in the place of each of them."""
    if not body.count("rp-stale") == body.count(STALE) == body.count("rp-number") > 1:
        return body, source
    return body.replace(STALE, ""), f"{source} {STALE_ALL}"


def panels(drawn: Iterable[str], kind: str = "") -> str:
    """Panels of the same thing, one a machine: the page shows one at a time.

    Args:
        kind: "table", or nothing for a chart.
    """
    # a section, since the search's index takes the first </div> inside for the end of what it was to leave out
    classes = f"rp-chart rp-chart--{kind}" if kind else "rp-chart"
    return f'<section class="{classes}" data-search-exclude>{"".join(drawn)}</section>'


def beside(blocks: Iterable[str]) -> str:
    """Charts or tables of the same thing side by side, where the screen has room for two."""
    return f'<section class="rp-pair">{"".join(blocks)}</section>'


def link(text: str, href: str) -> str:
    """A link; the text is escaped."""
    return f'<a href="{escape(href)}">{escape(text)}</a>'


def unbroken(text: str) -> str:
    """HTML that may break after a comma alone; the text is escaped."""
    return escape(text).replace(" ", "&nbsp;").replace(",&nbsp;", ", ")


def code(text: str) -> str:
    return f"<code>{escape(text)}</code>"

"""A plot as HTML: title, drawings, source, and the drawn numbers as a table."""

import json
import re
from collections.abc import Callable, Mapping
from html import escape

from docs.publish import evidence, markup, palette, units
from docs.publish.evidence import Evidence
from docs.publish.macros.charts import words
from docs.publish.macros.charts.bars import bars
from docs.publish.macros.charts.curves import lines
from docs.publish.macros.charts.marks import Mark, Plot
from docs.publish.macros.charts.question import Question
from docs.publish.macros.charts.svg import svg
from docs.publish.macros.charts.vega import Spec
from docs.publish.place import machine_page
from docs.publish.records.measured import Measured

DRAW: dict[str, Callable[[Plot, int], Spec]] = {"bars": bars, "lines": lines}
RATIO = re.compile(r"\{[^}]+/[^}]+\}")  # in a title; who divides the numbers that are shown gets another last digit
SIZES = {"wide": 720, "narrow": 350}  # CSS pixels


def panel(question: Question, plot: Plot, shown: Evidence, first: bool) -> str:
    """The panel of a machine; the numbers of its table are added to the page's evidence.

    Args:
        first: it is that of the page's machine, which is shown until the reader chooses another.
    """
    row = plot.newest
    shown.stale += [f"chart: {row}: {evidence.busy(row.busy)}" for row in plot.busy]
    machine = markup.link(row.record.machine["name"], shown.place.to(machine_page(row.machine)))
    known = (row.machine, row.record.machine["name"])
    if not plot.marks:
        return markup.panel(
            what=words.what(question, plot), body="", source=f"{machine}.{_busy(plot)}", machine=known, shown=first
        )
    title = words.title(question, plot)
    spoken = f"{title}. {words.drawing(plot)}"
    why = plot.undrawn
    drawings = (drawing(DRAW[question.kind](plot, width), size, spoken) for size, width in SIZES.items())
    note = f" {escape(question.note)}" if first and question.note else ""  # as the title: of the page's machine only
    if first and RATIO.search(question.title) and not why:
        note += " Ratios are of unrounded times."
    table = _table(question, plot, shown)
    return markup.panel(
        title="" if why else title,
        what=words.what(question, plot),
        body=instead(row, why) if why else "".join(drawings),
        source=f"{machine}, {evidence.days(mark.row.record for mark in plot.marks)}.{note}{_stale(plot)}{_busy(plot)}",
        details=f"<details><summary>The numbers</summary>{table}</details>",
        machine=known,
        shown=first,
    )


def instead(row: Measured, why: str) -> str:
    """What is said of a machine of which a drawing would show nothing."""
    said = f"The numbers of {row.record.machine['name']} are not drawn: {why}. The table below has them."
    return f'<p class="rp-chart__words">{escape(said)}</p>'


def _stale(plot: Plot) -> str:
    """Which of the drawn variants have changed since they were measured."""
    newest = {mark.variant: mark for mark in plot.marks}
    stale = {mark.label(): mark.row.stale for mark in newest.values() if mark.row.stale}
    return f" {markup.STALE_ALL}" if 1 < len(stale) == len(newest) else changed(stale)


def changed(stale: Mapping[str, str]) -> str:
    """The badge of what is drawn and stale, by name with what has changed since; nothing of no names."""
    names: dict[str, list[str]] = {}
    for name, what in stale.items():
        names.setdefault(what, []).append(name)
    said = " ".join(f"{escape(', '.join(those))}: the {what} has changed since." for what, those in names.items())
    return f' <span class="rp-badge">stale</span> {said}' if names else ""


def _busy(plot: Plot) -> str:
    """Which rows are not drawn, and why."""
    if not plot.busy:
        return ""
    variants: dict[str, list[str]] = {}
    for row in plot.busy:
        variants.setdefault(units.size(row.size), []).append(palette.label(row.variant, case=row.case))
    places = "; ".join(f"{', '.join(names)} at {size}" for size, names in variants.items())
    why = evidence.busy(plot.busy[0].busy)
    return f' <span class="rp-badge">busy</span> Not drawn: {escape(places)}. {escape(why)}'


def drawing(spec: Spec, size: str, spoken: str) -> str:
    """A drawing for a size of screen, and what it is drawn from again at a touch; `spoken` is said of it."""
    data = json.dumps(spec, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    drawn = f'role="img" aria-label="{escape(spoken)}">{svg(spec)}'
    return (
        f'<div class="rp-chart__plot rp-chart__plot--{size}" {drawn}</div>'
        f'<script type="application/json" class="rp-chart__spec">{data}</script>'
    )


def _table(question: Question, plot: Plot, shown: Evidence) -> str:
    """The drawn numbers, each opening its evidence."""
    along = [question.x] if question.x else []
    spread = [plot.spread_of] if plot.measure.power else []

    def cells(mark: Mark) -> list[str]:
        x, ends = [str(mark.x)] * len(along), [plot.spread(mark)] * len(spread)
        return [escape(mark.label()), *x, shown.cell(mark.row, question.metric), *ends]

    head = ["variant", *along, plot.measure.label, *spread]
    return markup.table(map(escape, head), (("", cells(mark)) for mark in plot.marks))

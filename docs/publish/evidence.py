"""A number as HTML, and what opens when a reader asks where it comes from."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from html import escape
from typing import Any

from docs.publish import markup, palette, units
from docs.publish.place import Place, machine_page
from docs.publish.records.measured import DIRECTIONS, METRICS, MODES, Measured, Published
from docs.publish.records.schema import Record, Row, Run, Sweep, describe
from tests.benchmarks import source
from tests.benchmarks.runner import discover


@dataclass(frozen=True)
class Quantity:
    """A value with where it comes from.

    Attributes:
        value: in base units.
        unit: see units.py.
        entry: what its evidence shows: label, value, command, machine, software, date, spread, links, ...
        href: where a reader without scripts is led.
    """

    value: float
    unit: str
    entry: dict[str, Any]
    href: str

    @property
    def text(self) -> str:
        return self.entry["value"]

    @property
    def stale(self) -> str:
        """What has changed since it was measured: see staleness.py."""
        return self.entry.get("stale", "")

    @property
    def busy(self) -> bool:
        """Whether it was measured on a busy machine, and nowhere else."""
        return bool(self.entry.get("busy"))


@dataclass
class Evidence:
    """What a page's numbers open, by id, and which of them a release refuses: they are stale, or of a busy machine."""

    place: Place
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    stale: list[str] = field(default_factory=list)

    def show(self, quantity: Quantity) -> str:
        """The number as HTML; its evidence is kept for the end of the page."""
        key = f"e{len(self.entries) + 1}"
        self.entries[key] = {name: fact for name, fact in quantity.entry.items() if fact}
        if badges := markup.marks(quantity):
            self.stale.append(quantity.entry["label"])
        marked = " ".join(["rp-number", *(["rp-stale"] if badges else [])])
        badge = f" <small>{', '.join(badges)}</small>" if badges else ""
        hover = f' title="{escape(said)}"' if (said := quantity.entry.get("meaning")) else ""
        link = f'class="{marked}" href="{escape(quantity.href)}" data-evidence="{key}"{hover}'
        return f"<a {link}>{quantity.text}{badge}</a>"

    def cell(self, row: Measured | None, metric: str, over: str | None = None) -> str:
        """A metric of a row as HTML; a dash where there is no such thing."""
        quantity = of_row(row, metric, over, self.place) if row else None
        return self.show(quantity) if quantity else markup.NONE

    def software(self) -> set[str]:
        """What the runs behind the numbers had, each as in "torch 2.11.0+cu130"."""
        return {part for entry in self.entries.values() for part in entry.get("software", "").split(", ")}

    def script(self) -> str:
        """The evidence of all numbers of the page, for its end; nothing if there is none."""
        if not self.entries:
            return ""
        content = json.dumps(self.entries, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
        return f'<script type="application/json" id="rp-evidence">{content}</script>\n'


@dataclass(frozen=True)
class Shown:
    """A quantity that a page prints, or hands to another macro: if printed, its evidence goes to the page's end."""

    quantity: Quantity
    evidence: Evidence

    def __str__(self) -> str:
        return self.evidence.show(self.quantity)


def plain(given: Any) -> Any:
    """What another macro computes with: a quantity where one is shown, anything else as it is."""
    return given.quantity if isinstance(given, Shown) else given


def of_row(row: Measured, metric: str, over: str | None, place: Place) -> Quantity | None:
    """A metric of a row with its evidence; None where the row has no such thing.

    Raises:
        PublishError: see Measured.metric.
    """
    published, known = row.published(metric, over), METRICS[metric]
    if published is None:
        return None
    entry = {
        "label": f"{known.label[0].upper()}{known.label[1:]}{f' over {over}' if over else ''}: {describe(row.row)}",
        "value": published.text,
        "about": about(row),
        "again": f"python -m tests.benchmarks {row.case}",
        "meaning": meaning(row, published),
        "runs": [_run(measured, said, known.unit) for measured, said in published.runs],
        "spread": "" if published.runs else spread(row, metric, over),
        "note": above_ceiling(row, metric),
        **of_record(row.record, place),
        "source_url": place.source(row.row.sources.files[0], row.record.commit),
        "stale": row.stale,
        "busy": busy(row.busy) if row.busy else "",
    }
    return Quantity(published.value, known.unit, entry, place.to(machine_page(row.machine, row.anchor, row.case)))


def about(row: Measured) -> str:
    """The row in words: where in its case it stands, and what the case asks."""
    place = f"{DIRECTIONS[row.direction]}, {units.size(row.size)}, {row.dtype}, {MODES[row.mode]}"
    asked = question(row.case)
    where = f"{palette.label(row.variant, case=row.case)}: {place}."
    return f"{where} The case asks: {asked}" if asked else where


@cache
def question(case: str) -> str:
    """What a case asks; nothing of one that is no more."""
    path = discover().get(case)
    return source.question(path) if path else ""


def meaning(row: Measured, published: Published) -> str:
    """What a host-bound number is, in a sentence or two; nothing of others."""
    if published.runs:
        machines, middle = len(published.runs), units.text(published.value, published.unit)
        return (
            f"The host sets this pace, so this is the range from the lowest to the highest of {machines} machines. "
            f"Their median is {middle}."
        )
    host = row.record.machine.get("processor") if row.host_bound and published.unit == "s" else None
    return f"The host sets this pace, and this is one host's time: {host}. Yours will differ." if host else ""


def kind(shown: Iterable[Published | None]) -> str:
    """What the host-bound ones of some numbers are, to follow their mode in a line; nothing where there is none."""
    known = [published for published in shown if published]
    runs = max((len(published.runs) for published in known), default=0)
    return f", from the lowest to the highest of {runs} machines" if runs else ""


def days(records: Iterable[Record]) -> str:
    """When some runs were: the first day and the last."""
    known = sorted({record.date[:10] for record in records})
    return " to ".join(dict.fromkeys((known[0], known[-1])))


def busy(reason: str) -> str:
    """What to say of a number that was measured on a busy machine."""
    return f"This machine was busy ({reason}); measure again."


def _run(row: Row, value: float, unit: str) -> dict[str, str]:
    """A run as the evidence of a range lists it."""
    host = row.record.machine.get("processor")
    return {"date": row.record.date[:10], "value": units.text(value, unit)} | ({"host": host} if host else {})


def of_record(record: Record, place: Place) -> dict[str, Any]:
    """What the evidence of every number of a run shares."""
    return of_run(record) | {"download_url": place.to(f"results/{record.machine['slug']}.json")}


def of_run(record: Record | Sweep | Run) -> dict[str, Any]:
    """Who measured when, with what."""
    return {
        "command": record.command,
        "machine": record.machine["name"],
        "software": ", ".join(f"{name} {version}" for name, version in record.software.items()),
        "date": record.date,
    }


def spread(row: Measured, metric: str, over: str | None) -> str:
    """From the 20th to the 80th percentile, in words; empty where the time has no part in the metric."""
    ends = row.spread(metric, over)
    if ends is None:
        return ""
    low, high = (units.text(end, METRICS[metric].unit) for end in ends)
    return f"{low} to {high} (p20 to p80 of {row.time.samples} samples)"


def above_ceiling(row: Measured, metric: str) -> str:
    """The explanation that a number above its measured ceiling needs; empty otherwise."""
    share = {"bandwidth": "share", "share": "share", "rate": "rate_share", "rate_share": "rate_share"}.get(metric)
    reached = row.metric(share) if share else None
    if reached is None or reached <= 1:
        return ""
    return (
        f"Above the ceiling measured in the same run, at {units.text(reached, '%')} of it. The ceiling is the best of "
        "a few plain kernels on large tensors. A kernel whose reads and writes interleave better, or whose output "
        "stays in the cache, can pass this ceiling. The number is below the datasheet's peak, or the record would have "
        "been refused."
    )

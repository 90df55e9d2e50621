"""A number as HTML, and what opens when a reader asks where it comes from."""

import json
from dataclasses import dataclass, field
from html import escape
from typing import Any

from docs.publish import units
from docs.publish.place import Place, machine_page
from docs.publish.records.measured import METRICS, Measured
from docs.publish.records.schema import Record, Sweep, describe


@dataclass(frozen=True)
class Quantity:
    """A value with where it comes from.

    Attributes:
        value: in base units.
        unit: see units.py.
        entry: what its evidence shows: label, value, command, machine, software, date, spread, links, ...
        href: where a reader without scripts is led.
        stale: the code that it measured has changed since.
    """

    value: float
    unit: str
    entry: dict[str, Any]
    href: str
    stale: bool = False

    @property
    def text(self) -> str:
        return self.entry["value"]


@dataclass
class Evidence:
    """What a page's numbers open, by id, and which of its numbers are stale."""

    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    stale: list[str] = field(default_factory=list)

    def show(self, quantity: Quantity) -> str:
        """The number as HTML; its evidence is kept for the end of the page."""
        key = f"e{len(self.entries) + 1}"
        self.entries[key] = quantity.entry
        badge = " <small>stale</small>" if quantity.stale else ""
        if quantity.stale:
            self.stale.append(quantity.entry["label"])
        marked = "rp-number rp-stale" if quantity.stale else "rp-number"
        return f'<a class="{marked}" href="{escape(quantity.href)}" data-evidence="{key}">{quantity.text}{badge}</a>'

    def script(self) -> str:
        """The evidence of all numbers of the page, for its end; nothing if there is none."""
        if not self.entries:
            return ""
        content = json.dumps(self.entries, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
        return f'<script type="application/json" id="rp-evidence">{content}</script>\n'


def of_row(row: Measured, metric: str, over: str | None, place: Place) -> Quantity | None:
    """A metric of a row with its evidence; None where the row has no such thing.

    Raises:
        PublishError: see Measured.metric.
    """
    value = row.metric(metric, over)
    if value is None:
        return None
    known = METRICS[metric]
    entry = {
        "label": f"{known.label[0].upper()}{known.label[1:]}{f' over {over}' if over else ''}: {describe(row.row)}",
        "value": units.text(value, known.unit),
        "spread": spread(row, metric, over),
        "note": above_ceiling(row, metric),
        **of_record(row.record, place),
        "source_url": place.source(row.row.sources.files[0], row.record.commit),
        "stale": row.stale,
    }
    shown = {key: fact for key, fact in entry.items() if fact}
    return Quantity(value, known.unit, shown, place.to(machine_page(row.machine, row.anchor)), row.stale)


def of_record(record: Record, place: Place) -> dict[str, Any]:
    """What the evidence of every number of a run shares."""
    return of_run(record) | {"download_url": place.to(f"results/{record.machine['slug']}.json")}


def of_run(record: Record | Sweep) -> dict[str, Any]:
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
    return f"{low} to {high} (p20 to p80 of {row.time.samples} samples of its time)"


def above_ceiling(row: Measured, metric: str) -> str:
    """The explanation that a number above its measured ceiling needs; empty otherwise."""
    share = {"bandwidth": "share", "share": "share", "rate": "rate_share", "rate_share": "rate_share"}.get(metric)
    reached = row.metric(share) if share else None
    if reached is None or reached <= 1:
        return ""
    return (
        f"Above the ceiling measured in the same run, at {units.text(reached, '%')} of it. The ceiling is the best of "
        "a few plain kernels on large tensors. A kernel whose reads and writes interleave better, or whose output "
        "stays in the cache, can pass it. It stays below the datasheet's peak, or the record would have been refused."
    )

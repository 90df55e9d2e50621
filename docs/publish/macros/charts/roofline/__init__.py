"""A machine's roofline: both roofs, the ridge point where they meet, and what was measured below them.

Both axes are logarithmic. The bytes and FLOPs of a place are its function's own, by the formulas of its case. So all of
its variants have one intensity: they stand on one stem, which ends at the place's name.

plot.py ──> names.py ──> drawing.py ──> HTML, here
records     where the     Vega-Lite      with title, table and evidence
            names stand
"""

import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from docs.publish import evidence, markup, palette, units
from docs.publish.errors import PublishError, unknown
from docs.publish.evidence import Evidence, Quantity
from docs.publish.macros.calc import Input, calc
from docs.publish.macros.charts import panels
from docs.publish.macros.charts.roofline import drawing
from docs.publish.macros.charts.roofline.plot import Asked, Plot, rate
from docs.publish.macros.charts.roofline.plot import plot as of_machine
from docs.publish.place import Place, machine_page
from docs.publish.records.measured import MODES, Measured
from docs.publish.records.store import Store


def render(spec: Mapping[str, Any], store: Store, shown: Evidence, root: Path) -> str:
    """The roofline as HTML: a panel for each machine that measured the line.

    Raises:
        PublishError: the spec names nothing, or what was not measured on the published machine.
    """
    asked = Asked.of(spec)
    plots = [of_machine(asked, store, shown.place, root, slug) for slug in store.machines]
    drawn = [_panel(asked, plot, shown, home=plot.last.machine == store.main) for plot in plots if plot]
    if not drawn:
        raise PublishError(f"roofline: expected rows of {asked.variant!r} in {asked.case}, got none")
    return markup.panels(drawn)


def _panel(asked: Asked, plot: Plot, shown: Evidence, home: bool) -> str:
    row = plot.last
    stale = {stem.name: row.stale for stem in plot.every for row in stem.rows if row.stale}
    title = _title(asked, plot) if home else f"{row.record.machine['name']}: {_ridge(plot)}"
    points = "; ".join(f"{stem.name} {', '.join(map(_said, stem.rows))}" for stem in plot.every)
    spoken = f"{title}. {_ridge(plot)}. {points}"
    drawn = (panels.drawing(drawing.spec(plot, width), size, spoken) for size, width in panels.SIZES.items())
    why = plot.undrawn
    machine = markup.link(row.record.machine["name"], shown.place.to(machine_page(row.machine)))
    days = evidence.days(each.record for stem in plot.every for each in stem.rows)
    return markup.panel(
        title="" if why else title,
        what=f"Rate over arithmetic intensity, both axes logarithmic. {_timed(plot)}",
        body=panels.instead(row, why) if why else _key(plot) + "".join(drawn),
        source=f"{machine}, {days}.{f' {escape(asked.note)}' if home and asked.note else ''}{panels.changed(stale)}",
        details=f"<details><summary>The numbers</summary>{_table(plot, shown)}</details>",
        machine=(row.machine, row.record.machine["name"]),
        shown=home,
    )


def _title(asked: Asked, plot: Plot) -> str:
    """The page's title; its placeholders are {ridge}, {memory}, {matrix}, {kernels}, and {left}: those left of it."""
    left = sum(stem.intensity < plot.roofs.ridge.value for stem in plot.kernels)
    known = {name: getattr(plot.roofs, name).text for name in ("ridge", "memory", "matrix")}
    known |= {"kernels": str(len(plot.kernels)), "left": "all" if left == len(plot.kernels) else str(left)}

    def filled(found: re.Match[str]) -> str:
        if found[1] not in known:
            raise unknown("roofline: title", found[1], known)
        return known[found[1]]

    title = re.sub(r"\{([^{}]+)\}", filled, asked.title)
    return title[:1].upper() + title[1:]


def _ridge(plot: Plot) -> str:
    return f"the ridge point lies at {plot.roofs.ridge.text}"


def _said(row: Measured) -> str:
    return f"{palette.label(row.variant, case=row.case)} {units.text(rate(row), 'FLOP/s')}"


def _timed(plot: Plot) -> str:
    modes = dict.fromkeys(MODES[row.mode] for stem in plot.every for row in stem.rows)
    return f"Forward, {plot.roofs.dtype}, {' or '.join(modes)}. Bytes and FLOPs by the formulas of each case."


def _key(plot: Plot) -> str:
    """Which colour is whose: names of places stand in the drawing, those of variants would not fit."""
    roles: dict[str, list[str]] = {}
    order = list(palette.variants())
    for row in sorted((row for stem in plot.stems for row in stem.rows), key=lambda row: order.index(row.variant)):
        names = roles.setdefault(palette.colour(row.variant), [])
        if (label := palette.label(row.variant, case=row.case)) not in names:
            names.append(label)
    dots = (
        f'<span style="color: {colour}"><span aria-hidden="true">●</span> {escape(", ".join(names))}</span>'
        for colour, names in roles.items()
    )
    return f'<p class="rp-key">{" ".join(dots)}</p>'


def _table(plot: Plot, shown: Evidence) -> str:
    """The roofs and the points, each number with its evidence."""
    roofs = [("the memory's roof", plot.roofs.memory), ("the matrix units' roof", plot.roofs.matrix)]
    lines = [("", [escape(name), markup.NONE, markup.NONE, shown.show(roof)]) for name, roof in roofs]
    lines.append(("", ["the ridge point", markup.NONE, shown.show(plot.roofs.ridge), markup.NONE]))
    for stem in plot.every:
        for row in stem.rows:
            named = escape(stem.name), escape(palette.label(row.variant, case=row.case))
            lines.append(("", [*named, shown.show(_intensity(row, shown.place)), shown.cell(row, "rate")]))
    return markup.table(("place", "variant", "FLOP per byte", "rate"), lines)


def _intensity(row: Measured, place: Place) -> Quantity:
    """FLOP per byte, from the numbers that the case's formulas gave at this shape."""
    inputs: dict[str, Input] = {
        "flops": row.row.flops,
        "bytes_read": row.row.bytes_read,
        "bytes_written": row.row.bytes_written,
    }
    found = calc(place, "flops / (bytes_read + bytes_written)", "FLOP/byte", inputs)
    source = {"source_url": place.source(row.row.sources.files[-1], row.record.commit)}
    href = place.to(machine_page(row.machine, row.anchor, row.case))
    return Quantity(found.value, found.unit, found.entry | evidence.of_run(row.record) | source, href)

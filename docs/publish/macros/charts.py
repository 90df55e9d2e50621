"""Charts from records: one declarative spec (Altair), drawn as static SVG, made interactive on the first touch.

A chart answers one question, and its title says the answer, computed from the rows that it draws. Colours are CSS
variables of docs/theme/palette.json, so one drawing serves light and dark mode. Each is drawn twice, wide and for a
phone; CSS shows the one that fits. What a machine has not measured is not drawn for it.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import altair as alt
import vl_convert

from docs.publish import evidence, palette, units
from docs.publish.errors import PublishError, unknown
from docs.publish.evidence import Evidence
from docs.publish.place import Place, machine_page
from docs.publish.records.store import DIRECTIONS, METRICS, MODES, PUBLISHED_MACHINE, Measured, Store
from tests.benchmarks.source import ROOT

CACHE = ROOT / ".cache" / "charts"
VEGA_LITE = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])

INK, SOFT, LINE, CEILING = (palette.colour(name) for name in ("ink", "ink-soft", "line", "ceiling"))
FONT, TEXT, SMALL = "Ridgepoint Serif", 14, 12.5
SIZES = {"wide": 720, "narrow": 350}  # CSS pixels
CHARACTER = 0.5  # width of an average character, in font sizes: reserves room for labels
CHOICES = ("direction", "shape", "dtype", "mode")  # settled in this order: a shape may have one mode only
KEYS = {"kind", "case", "metric", "variants", "over", "x", "machine", "title", "note", "better", *CHOICES}


MIXES = {"triad": "measured ceiling of two reads per write"}
# sizes that are whole multiples of 2^20 in words that fit below an axis: 536870912 is 512 Mi
BINARY = "datum.value % 1048576 == 0 ? datum.value / 1048576 + ' Mi' : datum.value"
LOWER_IS_BETTER = {"time", "memory", "kernels", "build", "error", "registers"}


@dataclass(frozen=True)
class Mark:
    """One drawn value in base units, from its 20th to its 80th percentile (the value where the time has no part)."""

    x: Any
    value: float
    low: float
    high: float
    row: Measured

    @property
    def variant(self) -> str:
        return self.row.variant

    def label(self, short: bool = False) -> str:
        return palette.label(self.variant, short)


@dataclass(frozen=True)
class Plot:
    """What is drawn for one machine: its marks, all in one unit, and the ceiling's height and name."""

    metric: str
    marks: list[Mark]
    unit: str
    ceiling: tuple[float, str] | None
    variants: list[str]

    @property
    def scale(self) -> float:
        return units.NAMED[self.unit][0]

    def show(self, value: float) -> str:
        """In the plot's unit."""
        return units.in_unit(value, self.unit)

    def best(self, value: float) -> str:
        """In the unit that fits it best, as prose has it."""
        return units.text(value, METRICS[self.metric].unit)


def render(spec: Mapping[str, Any], store: Store, shown: Evidence, place: Place) -> str:
    """A chart as HTML: one panel a machine, each with title, static SVG (wide and narrow), source line and data table.

    Args:
        spec: kind ("bars", "lines" or "history"), case, metric, and as far as needed to name one row a mark: variants,
            shape, direction, dtype, mode, machine; over for "speedup"; x (a shape dimension) for "lines"; title with
            placeholders ({ours}, {ours@4096}, {eager/ours}, {ceiling}); note, a sentence below, which
            like the title is of the page's machine; better=False where the values are no contest (two ways to time the
            same call).
        store: the records.
        shown: the page's evidence; the numbers of the data table are added to it.
        place: the page.

    Raises:
        PublishError: the spec names nothing, or more than one row a mark; the message says what was expected.
    """
    for key in spec:
        if key not in KEYS:
            raise unknown("chart", key, sorted(KEYS))
    if "case" not in spec:
        raise PublishError("chart: expected case=..., got none")
    for key, known in (("kind", KINDS), ("metric", METRICS)):
        if spec.get(key) not in known:
            raise unknown(f"chart: {key}", spec.get(key), known)
    plots = [plot for rows in _rows(spec, store) if (plot := _plot(spec, rows))]
    if not plots:
        raise PublishError(f"chart: expected rows to draw, got none for {_asked(spec)}")
    panels = [_panel(spec, plot, shown, place, first=not index) for index, plot in enumerate(plots)]
    # a section, since the search's index takes the first </div> inside for the end of what it was to leave out
    return f'<section class="rp-chart" data-search-exclude>{"".join(panels)}</section>'


def bundle() -> str:
    """Vega, Vega-Lite and vega-embed as one script that sets window.vegaEmbed: the site's assets/vega.js."""
    name = f"vega-{vl_convert.__version__}-{VEGA_LITE}.js"
    return _cached(name, lambda: vl_convert.javascript_bundle(vl_version=VEGA_LITE))


# ---- from the record to marks ---------------------------------------------------------------------------------------


def _plot(spec: Mapping[str, Any], rows: list[Measured]) -> Plot | None:
    """The marks of one machine; None where it has measured nothing of this."""
    variants = spec.get("variants") or list(palette.variants())
    marks = [mark for row in rows if row.variant in variants and (mark := _mark(spec, row))]
    if not marks:
        return None
    _one_row_each(spec, marks)
    drawn = [name for name in variants if any(mark.variant == name for mark in marks)]
    return Plot(spec["metric"], marks, _unit(spec["metric"], marks), _ceiling(spec["metric"], marks), drawn)


def _home(spec: Mapping[str, Any]) -> str:
    """The machine that the page speaks of."""
    return spec.get("machine") or PUBLISHED_MACHINE


def _rows(spec: Mapping[str, Any], store: Store) -> list[list[Measured]]:
    """The rows to draw, machine by machine, the page's own first."""
    case, home = spec["case"], _home(spec)
    wanted = {name: spec.get(name) for name in CHOICES if name != "shape" or spec["kind"] != "lines"}
    chosen = store.choose(case, home, **wanted)
    others = [] if spec.get("machine") else [machine for machine in store.machines if machine != home]
    wanted["direction"] = chosen[0].direction
    found = [chosen, *(store.nearest(case, machine, **wanted) for machine in others)]
    return [_with_history(rows, store) for rows in found] if spec["kind"] == "history" else found


def _with_history(rows: list[Measured], store: Store) -> list[Measured]:
    """The same rows from all runs, oldest first."""
    points = {(row.machine, row.variant, *(_choice(row, name) for name in CHOICES)) for row in rows}
    every = store.select(case=rows[0].case, history=True) if rows else []
    return [row for row in every if (row.machine, row.variant, *(_choice(row, name) for name in CHOICES)) in points]


def _choice(row: Measured, name: str) -> str:
    return row.size if name == "shape" else getattr(row, name)


def _mark(spec: Mapping[str, Any], row: Measured) -> Mark | None:
    """A row as a mark; None where the row has no such metric (memory on a CPU)."""
    metric, over = spec["metric"], spec.get("over")
    value = row.metric(metric, over)
    if value is None or row.variant == over:
        return None
    low, high = row.spread(metric, over) or (value, value)
    return Mark(_x(spec, row), value, low, high, row)


def _x(spec: Mapping[str, Any], row: Measured) -> Any:
    if spec["kind"] == "bars":
        return None
    if spec["kind"] == "history":
        return row.record.date
    if spec.get("x") not in row.shape:
        raise unknown("chart: x", spec.get("x"), row.shape)
    return row.shape[spec["x"]]


def _one_row_each(spec: Mapping[str, Any], marks: list[Mark]) -> None:
    """Lines leave the shape open: each variant must have one row at each x."""
    seen: dict[tuple, Mark] = {}
    for mark in marks:
        other = seen.setdefault((mark.variant, mark.x), mark)
        if other is not mark and spec["kind"] == "lines":
            raise PublishError(
                f"chart: expected one shape for each {spec['x']}, got {other.row.size} and {mark.row.size}"
            )


def _ceiling(metric: str, marks: list[Mark]) -> tuple[float, str] | None:
    """The height of the dashed line and its name, from the newest row's own run."""
    row = marks[-1].row
    if metric in ("share", "bandwidth"):
        rate = row.record.ceilings["bandwidth"][row.mix]["rate"]
        return (1.0 if metric == "share" else rate), MIXES.get(row.mix, f"measured {row.mix} ceiling")
    if metric in ("rate", "rate_share") and row.matrix_ceiling:
        return (1.0 if metric == "rate_share" else row.matrix_ceiling), "measured matrix ceiling"
    return None


def _unit(metric: str, marks: list[Mark]) -> str:
    """One unit for the whole plot: the largest in which the middle value is at least one."""
    family = METRICS[metric].unit
    if family in units.FIXED:
        return family
    middle = sorted(mark.value for mark in marks)[len(marks) // 2]
    fitting = [name for scale, name in units.STEPS[family] if scale <= middle]
    return (fitting or [units.STEPS[family][0][1]])[-1]


# ---- what the title says --------------------------------------------------------------------------------------------


def _title(spec: Mapping[str, Any], plot: Plot) -> str:
    """The page's title with its placeholders filled. Of other machines the page claims nothing: there, who is ahead.

    Where nobody can be, because there is one variant or no better direction, it is what the mark says.
    """
    row = plot.marks[-1].row
    if row.machine == _home(spec):
        return re.sub(r"\{([^{}]+)\}", lambda found: _filled(spec, plot, found.group(1)), spec.get("title", ""))
    last = (
        [mark for mark in plot.marks if mark.x == max(mark.x for mark in plot.marks)] if plot.marks[0].x else plot.marks
    )
    best = (min if plot.metric in LOWER_IS_BETTER else max)(last, key=lambda mark: mark.value)
    where = f" at {best.x} {spec['x']}" if spec["kind"] == "lines" else ""
    if spec.get("better", True) and len(plot.variants) > 1:
        return f"{row.record.machine['name']}: {best.label()} is ahead{where} with {plot.best(best.value)}"
    return f"{row.record.machine['name']}: {best.label()}{where}, {plot.best(best.value)}"


def _filled(spec: Mapping[str, Any], plot: Plot, asked: str) -> str:
    """A placeholder's text: {ours}, {ours@4096}, {eager/ours} (a ratio of values) or {ceiling}."""
    if asked == "ceiling" and plot.ceiling:
        return plot.best(plot.ceiling[0])
    values = [_at(spec, plot, name.strip()) for name in asked.split("/")]
    return plot.best(values[0]) if len(values) == 1 else units.text(values[0] / values[1], "x")


def _at(spec: Mapping[str, Any], plot: Plot, name: str) -> float:
    """The value of a variant; on lines at the x after "@", else at the title's shape, else at the largest x."""
    variant, _, x = name.partition("@")
    its = [mark for mark in plot.marks if mark.variant == variant]
    if not its:
        raise unknown("chart: title", variant, [*plot.variants, "ceiling"])
    if x or (spec.get("shape") and spec["kind"] == "lines"):
        fitting = [mark for mark in its if str(mark.x) == x or mark.row.size == spec.get("shape")]
        if not fitting:
            raise unknown(f"chart: title: {spec.get('x')} of {variant}", x or spec["shape"], (mark.x for mark in its))
        return fitting[-1].value
    return its[0].value if its[0].x is None else max(its, key=lambda mark: mark.x).value


# ---- drawings -------------------------------------------------------------------------------------------------------


def _bars(plot: Plot, width: int) -> dict:
    """Sorted bars, best first, each with its name and value; names stand above the bars on a phone."""
    narrow = width < 500
    best_first = sorted(plot.marks, key=lambda mark: mark.value, reverse=plot.metric not in LOWER_IS_BETTER)
    left = 4 if narrow else _room(mark.label() for mark in best_first) + 12
    right = _room((plot.show(mark.value) for mark in best_first), bold=True) + 22
    step, thickness = (46, 16) if narrow else (34, 20)
    drawn = width - left - right
    top = max([mark.high for mark in best_first] + ([plot.ceiling[0]] if plot.ceiling else []))
    scale = alt.Scale(domain=[0, top / plot.scale], nice=False)

    def x(field: str) -> alt.X:
        return alt.X(f"{field}:Q", axis=None, scale=scale)

    y = alt.Y("key:N", sort=None, axis=None, scale=alt.Scale(paddingInner=0, paddingOuter=0))
    base = alt.Chart(_data(plot, best_first)).encode(y=y)
    middle = 8 if narrow else 0
    # Past a ceiling the values stand in a column, where the dashed line does not cross them.
    value = base.mark_text(
        align="right" if plot.ceiling else "left",
        dx=0 if plot.ceiling else 9,
        yOffset=middle,
        color=INK,
        fontSize=TEXT,
        fontWeight=600,
    )
    layers = [
        base.mark_bar(size=thickness, yOffset=middle).encode(x=x("value"), color=_colour(), tooltip=_tooltip(plot)),
        base.mark_rule(color=INK, strokeWidth=1.2, yOffset=middle).encode(x=x("low"), x2="high:Q"),
        value.encode(x=alt.value(width - left - 4), text="text:N")
        if plot.ceiling
        else value.encode(x=x("high"), text="text:N"),
        base.mark_text(
            align="left" if narrow else "right",
            dx=0 if narrow else -10,
            dy=-10 if narrow else 0,
            color=INK,
            fontSize=TEXT,
        ).encode(x=alt.value(0), text="label:N"),
    ]
    if plot.ceiling:
        layers[:0] = _ceiling_layers(plot, x("value"), left + drawn * plot.ceiling[0] / top)
    return _finished(
        layers,
        drawn,
        step * len(best_first),
        {"left": left, "right": right, "top": 24 if plot.ceiling else 4, "bottom": 4},
    )


@dataclass(frozen=True)
class Rise:
    """The vertical scale of a plot of lines, in the plot's unit: from zero, or logarithmic where the values need it."""

    bottom: float
    top: float
    logarithmic: bool
    pixels: int

    @classmethod
    def of(cls, plot: Plot, pixels: int) -> "Rise":
        values = [value / plot.scale for mark in plot.marks for value in (mark.low, mark.high)]
        values += [plot.ceiling[0] / plot.scale] if plot.ceiling else []
        low, high = min(values), max(values)
        if plot.metric in LOWER_IS_BETTER and high > 30 * low > 0:
            return cls(low / 1.3, high * 1.3, True, pixels)
        return cls(0, high * 1.06 or 1, False, pixels)

    def pixel(self, value: float) -> float:
        """From the top."""
        warp = math.log if self.logarithmic else float
        return self.pixels * (warp(self.top) - warp(value)) / (warp(self.top) - warp(self.bottom))

    def value(self, pixel: float) -> float:
        part = pixel / self.pixels
        if self.logarithmic:
            return self.top * (self.bottom / self.top) ** part
        return self.top + (self.bottom - self.top) * part

    def ticks(self) -> list[float]:
        """Round values, about five: powers of ten where logarithmic."""
        if self.logarithmic:
            powers = range(math.ceil(math.log10(self.bottom)), math.floor(math.log10(self.top)) + 1)
            return [10.0**power for power in powers][:: max(1, len(powers) // 5)]
        step = 10 ** math.floor(math.log10(self.top / 4))
        step *= max(factor for factor in (1, 2, 5, 10) if factor * step <= self.top / 3 or factor == 1)
        return [index * step for index in range(math.floor(self.top / step) + 1)]


def _lines(plot: Plot, width: int) -> dict:
    """Lines over a size that doubles, each with its name and last value at its end."""
    sizes = sorted({mark.x for mark in plot.marks})
    scale = alt.Scale(type="log", base=2, domain=[sizes[0], sizes[-1]], nice=False)
    axis = _axis(
        values=_ticks(sizes, width), labelExpr=BINARY, ticks=True, tickColor=LINE, domain=True, domainColor=INK
    )
    return _curves(plot, width, alt.X("x:Q", scale=scale, axis=axis))


def _history(plot: Plot, width: int) -> dict:
    """A metric over the dates of its runs."""
    dates = sorted({mark.x for mark in plot.marks})
    labelled = dates[:: math.ceil(len(dates) / (2 if width < 500 else 5))]
    return _curves(plot, width, alt.X("x:T", axis=_axis(format="%-d %b %Y", values=labelled, domain=True)))


KINDS: dict[str, Callable[[Plot, int], dict]] = {"bars": _bars, "lines": _lines, "history": _history}


def _curves(plot: Plot, width: int, x: alt.X) -> dict:
    narrow = width < 500
    rise = Rise.of(plot, pixels=270 if narrow else 300)
    ends = _end_labels(plot, rise, short=narrow)
    ticks = {value: _tick(plot, rise, value) for value in rise.ticks()}
    left = _room(ticks.values()) + 12
    right = _room((end["label"] for end in ends if end["last"]), bold=True) + 14
    drawn = width - left - right
    scale = alt.Scale(
        type="log" if rise.logarithmic else "linear", domain=[rise.bottom, rise.top], nice=False, zero=False
    )
    names = json.dumps(list(ticks.values()), ensure_ascii=False)
    axis = _axis(
        grid=True,
        gridColor=LINE,
        gridWidth=0.6,
        values=list(ticks),
        labelExpr=f"{names}[indexof({list(ticks)}, datum.value)]",
        domain=False,
    )

    def y(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", scale=scale, axis=axis)

    base = alt.Chart(_data(plot, plot.marks)).encode(x=x, color=_colour())
    layers = [
        base.mark_rule(strokeWidth=1.4).encode(y=y("low"), y2="high:Q"),
        base.mark_line(strokeWidth=2.2).encode(y=y("value"), detail="variant:N"),
        base.mark_point(filled=True, size=38, opacity=1).encode(y=y("value"), tooltip=_tooltip(plot)),
        alt.Chart(alt.Data(values=ends))
        .mark_text(align="left", dx=10, fontSize=TEXT, fontWeight=600)
        .encode(x=x, y=y("place"), text="label:N", color=_colour()),
    ]
    if not rise.logarithmic:
        unit = alt.Chart(alt.Data(values=[{"unit": plot.unit}]))
        unit = unit.mark_text(align="left", dx=2 - left, dy=-14, fontSize=SMALL, color=SOFT)
        layers.append(unit.encode(x=alt.value(0), y=alt.value(0), text="unit:N"))
    if plot.ceiling:
        layers[:0] = _ceiling_layers(plot, y("value"))
    top = 12 if rise.logarithmic and not plot.ceiling else 24
    return _finished(layers, drawn, rise.pixels, {"left": left, "right": right, "top": top, "bottom": 24})


def _end_labels(plot: Plot, rise: Rise, short: bool) -> list[dict]:
    """A label for each line at its last point. Those that would overlap are pushed apart."""
    ends = [max((m for m in plot.marks if m.variant == name), key=lambda mark: mark.x) for name in plot.variants]
    ends.sort(key=lambda mark: mark.value, reverse=True)
    last = max(mark.x for mark in ends)
    labels = []
    for x in dict.fromkeys(mark.x for mark in ends):
        there = [mark for mark in ends if mark.x == x]
        pixels = _apart([rise.pixel(mark.value / plot.scale) for mark in there], TEXT + 3, rise.pixels)
        labels += [
            {
                "label": f"{mark.label(short)} {_number(plot, rise, mark.value)}",
                "colour": palette.colour(mark.variant),
                "x": x,
                "place": rise.value(pixel),
                "last": x == last,
            }
            for mark, pixel in zip(there, pixels, strict=True)
        ]
    return labels


def _tick(plot: Plot, rise: Rise, value: float) -> str:
    """The axis' label at a value: with its unit where the axis spans several."""
    if rise.logarithmic:
        return units.text(value * plot.scale, METRICS[plot.metric].unit, exact=True)
    return f"{value:,g}"


def _number(plot: Plot, rise: Rise, value: float) -> str:
    """A value as its line's label has it: without a unit where that stands at the axis."""
    if rise.logarithmic:
        return plot.best(value)
    return plot.show(value) if plot.unit == "%" else units.digits(value / plot.scale)


def _apart(pixels: list[float], gap: float, height: float) -> list[float]:
    """Positions, ascending, at least a gap apart and within the height, moved as little as a few sweeps need."""
    places = list(pixels)
    for _ in range(50):
        for one in range(len(places) - 1):
            lacking = gap - (places[one + 1] - places[one])
            if lacking > 0:
                places[one] -= lacking / 2
                places[one + 1] += lacking / 2
        places = [min(max(place, 0), height) for place in places]
    return places


def _ceiling_layers(plot: Plot, at: alt.X | alt.Y, before: float = 0) -> list[alt.Chart]:
    """The dashed line with its name: upright at an x, level at a y.

    The name ends at an upright line, or begins at the left where the pixels before the line are too few for it.
    """
    assert plot.ceiling
    value = plot.ceiling[0] / plot.scale
    text = plot.ceiling[1] if plot.unit == "%" else f"{plot.ceiling[1]} {plot.show(plot.ceiling[0])}"
    base = alt.Chart(alt.Data(values=[{"value": value, "text": text}]))
    upright = isinstance(at, alt.X)
    ends = upright and _room([text]) * SMALL / TEXT <= before
    where: dict[str, Any] = {"x": at if ends else alt.value(0), "y": alt.value(0) if upright else at}
    name = base.mark_text(color=SOFT, fontSize=SMALL, dy=-9, align="right" if ends else "left")
    dashed = base.mark_rule(color=CEILING, strokeWidth=1.3, strokeDash=[5, 4])
    return [dashed.encode(at), name.encode(text="text:N", **where)]


def _data(plot: Plot, marks: list[Mark]) -> alt.Data:
    scale = plot.scale
    return alt.Data(
        values=[
            {
                "key": str(index),
                "variant": mark.variant,
                "label": mark.label(),
                "colour": palette.colour(mark.variant),
                "x": mark.x,
                "value": mark.value / scale,
                "low": mark.low / scale,
                "high": mark.high / scale,
                "text": plot.show(mark.value),
                "spread": _spread(plot, mark),
                "where": mark.row.size.replace("x", "×"),
            }
            for index, mark in enumerate(marks)
        ]
    )


def _tooltip(plot: Plot) -> list[alt.Tooltip]:
    shown = {"label": "variant", "where": "shape", "text": "median"}
    if METRICS[plot.metric].power:
        shown["spread"] = "p20 to p80"
    return [alt.Tooltip(f"{field}:N", title=title) for field, title in shown.items()]


def _colour() -> alt.Color:
    return alt.Color("colour:N", scale=None)


def _axis(**settings: Any) -> alt.Axis:
    plain = {
        "title": None,
        "grid": False,
        "ticks": False,
        "domainColor": INK,
        "labelColor": SOFT,
        "labelFontSize": SMALL,
    }
    return alt.Axis(**(plain | {"labelPadding": 6, "labelOverlap": False} | settings))


def _ticks(sizes: list[int], width: int) -> list[int]:
    """The sizes to label, as far as there is room: the largest always, powers of two before others."""
    doubling = (width - 150) / max(1, math.log2(sizes[-1] / sizes[0]))  # pixels; 150 are for names beside the lines
    label = 7 * len(str(sizes[-1])) + 8
    kept = [sizes[-1]]
    for size in sorted(sizes[:-1], key=lambda size: (size & (size - 1) != 0, -size)):
        if all(abs(math.log2(size / other)) * doubling >= label for other in kept):
            kept.append(size)
    return sorted(kept)


def _room(texts: Iterable[str], bold: bool = False) -> int:
    """Pixels that the longest text needs."""
    return math.ceil(max(map(len, texts), default=0) * TEXT * (CHARACTER + 0.03 * bold))


def _finished(layers: list[alt.Chart], width: int, height: int, padding: dict[str, int]) -> dict:
    """The whole spec. Its size is fixed, so that the interactive drawing takes exactly the static one's place."""
    chart = alt.layer(*layers).properties(
        width=width, height=height, padding=padding, autosize=alt.AutoSizeParams(type="none"), background="transparent"
    )
    return chart.configure(font=FONT, aria=False).configure_view(stroke=None).to_dict()


# ---- HTML -----------------------------------------------------------------------------------------------------------


def _panel(spec: Mapping[str, Any], plot: Plot, shown: Evidence, place: Place, first: bool) -> str:
    row = plot.marks[-1].row
    machine = escape(row.record.machine["name"])
    title = _title(spec, plot)
    draw = KINDS[spec["kind"]]
    drawings = "".join(_drawing(draw(plot, width), size, f"{title}. {_spoken(plot)}") for size, width in SIZES.items())
    note = f" {escape(spec['note'])}" if first and spec.get("note") else ""  # as the title: of the page's machine only
    shown_first = " rp-shown" if first else ""
    link = place.to(machine_page(row.machine))
    return (
        f'<figure class="rp-chart__panel{shown_first}" data-machine="{row.machine}" data-name="{machine}">'
        f'<figcaption><div class="rp-chart__title">{escape(title)}</div>'
        f'<div class="rp-chart__what">{escape(_what(spec, plot))}</div></figcaption>'
        f"{drawings}"
        f'<p class="rp-chart__source"><a href="{link}">{machine}</a>, {row.record.date[:10]}.{note}{_stale(plot)}</p>'
        f"<details><summary>The numbers</summary>{_table(spec, plot, shown, place)}</details></figure>"
    )


def _stale(plot: Plot) -> str:
    """Which of the drawn variants have changed since they were measured."""
    newest = {mark.variant: mark for mark in plot.marks}
    names = [mark.label() for mark in newest.values() if mark.row.stale]
    return f' <span class="rp-badge">stale</span> {escape(", ".join(names))}: changed since.' if names else ""


def _drawing(spec: dict, size: str, spoken: str) -> str:
    data = json.dumps(spec, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    drawn = f'role="img" aria-label="{escape(spoken)}">{_svg(spec)}'
    return (
        f'<div class="rp-chart__plot rp-chart__plot--{size}" {drawn}</div>'
        f'<script type="application/json" class="rp-chart__spec">{data}</script>'
    )


def _svg(spec: dict) -> str:
    """The static drawing, from the cache where this very spec was drawn before."""
    text = json.dumps(spec, sort_keys=True)
    key = hashlib.sha256(f"{vl_convert.__version__}{text}".encode()).hexdigest()[:20]
    drawn = _cached(f"{key}.svg", lambda: vl_convert.vegalite_to_svg(text, vl_version=VEGA_LITE))
    drawn = drawn[drawn.index("<svg") :].replace("<svg", '<svg aria-hidden="true"', 1).replace("\n", " ")
    drawn = re.sub(r' (role|aria-roledescription)="[^"]*"', "", drawn)  # the plot around it is the named image
    return re.sub(r'(\bid="|url\(#)', rf"\g<1>c{key[:8]}-", drawn)


def _cached(name: str, make: Callable[[], str]) -> str:
    path = CACHE / name
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        partial.write_text(make(), encoding="utf-8")
        partial.replace(path)
    return path.read_text(encoding="utf-8")


def _table(spec: Mapping[str, Any], plot: Plot, shown: Evidence, place: Place) -> str:
    """The drawn numbers, each opening its evidence."""
    along = [] if spec["kind"] == "bars" else [spec.get("x", "date")]
    spread = ["p20 to p80"] if METRICS[plot.metric].power else []
    heads = ["variant", *along, METRICS[plot.metric].label, *spread]
    rows = []
    for mark in plot.marks:
        quantity = evidence.of_row(mark.row, plot.metric, spec.get("over"), place)
        assert quantity is not None  # a mark has a value
        if spec["kind"] == "history":  # an old run measured old code: no fault of the page
            quantity = replace(quantity, stale=False)
        cells = [*([_date(mark.x)] if along else []), shown.show(quantity), *([_spread(plot, mark)] if spread else [])]
        rows.append(f'<th scope="row">{escape(mark.label())}</th>' + "".join(f"<td>{cell}</td>" for cell in cells))
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    table = f'<table class="rp-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="rp-scroll">{table}</div>'


def _spread(plot: Plot, mark: Mark) -> str:
    return f"{plot.best(mark.low)} to {plot.best(mark.high)}"


def _date(x: Any) -> str:
    return x[:10] if isinstance(x, str) else str(x)


def _what(spec: Mapping[str, Any], plot: Plot) -> str:
    """One line under the title: what is drawn, and where it was measured."""
    row = plot.marks[-1].row
    name = METRICS[plot.metric].label
    over = f" over {palette.label(spec['over'])}" if spec.get("over") else ""
    better = ", less is better" if plot.metric in LOWER_IS_BETTER else ", more is better"
    better = better if spec.get("better", True) else ""
    shape = f"by {spec['x']}" if spec["kind"] == "lines" else row.size.replace("x", "×")
    timed = f", {MODES[row.mode]}" if METRICS[plot.metric].power else ""
    where = f"{DIRECTIONS[row.direction].capitalize()}, {row.dtype}, {shape}{timed}."
    return f"{name[0].upper()}{name[1:]}{over}{better}. {where}"


def _spoken(plot: Plot) -> str:
    """The drawing in words, for those who cannot see it."""
    at = {mark: "" if mark.x is None else f" at {_date(mark.x)}" for mark in plot.marks}
    return "; ".join(f"{mark.label()}{at[mark]} {plot.best(mark.value)}" for mark in plot.marks)


def _asked(spec: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in spec.items() if key not in {"title", "note", "kind"})

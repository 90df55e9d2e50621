"""Charts from records: one declarative spec (Altair), drawn as static SVG, made interactive on the first touch.

A chart answers one question, and its title says the answer, computed from the rows that it draws. Colours are CSS
variables of docs/theme/palette.json, so one drawing serves light and dark mode. Each is drawn twice, wide and for a
phone; CSS shows the one that fits. What a machine has not measured is not drawn for it.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from docs.publish import palette

ROOT = Path(__file__).parent.parent.parent
CACHE = ROOT / ".cache" / "charts"
VEGA_LITE = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])

INK, SOFT, LINE, CEILING = (palette.colour(name) for name in ("ink", "ink-soft", "line", "ceiling"))
FONT, TEXT, SMALL = "Ridgepoint Serif", 14, 12.5
CHARACTER = 0.5  # width of an average character, in font sizes: reserves room for labels
KEYS = {
    "kind", "case", "metric", "variants", "shape", "direction", "dtype", "mode", "over", "x", "machine", "title", "note",
}  # fmt: skip



@dataclass(frozen=True)
class Metric:
    """How a metric is called, in which steps its unit grows, and whether less is better."""

    name: str
    units: tuple[tuple[float, str], ...] = ((1, ""),)
    lower: bool = False


SECONDS = ((1e-6, "µs"), (1e-3, "ms"), (1, "s"))
METRICS = {
    "time": Metric("Time of one call", SECONDS, lower=True),
    "bandwidth": Metric("Bytes moved per second", ((1e6, "MB/s"), (1e9, "GB/s"), (1e12, "TB/s"))),
    "share": Metric("Share of the measured bandwidth ceiling", ((1e-2, "%"),)),
    "rate": Metric("Floating-point operations per second", ((1e9, "GFLOP/s"), (1e12, "TFLOP/s"))),
    "rate_share": Metric("Share of the measured matrix ceiling", ((1e-2, "%"),)),
    "speedup": Metric("Speedup", ((1, "×"),)),
    "memory": Metric("Peak memory", ((1e3, "KB"), (1e6, "MB"), (1e9, "GB")), lower=True),
    "kernels": Metric("Kernels launched", lower=True),
    "build": Metric("Time to build", SECONDS, lower=True),
    "error": Metric("Error against float64", lower=True),
    "registers": Metric("Registers per thread", lower=True),
}
SPREAD = {"time": -1, "bandwidth": 1, "share": 1, "rate": 1, "rate_share": 1, "speedup": 1}


@dataclass(frozen=True)
class Mark:
    """One drawn value, in SI units: a row's metric, and what it would be at the 20th and 80th percentile of the time."""

    variant: str
    x: Any
    value: float
    low: float
    high: float
    row: Any

    @property
    def label(self) -> str:
        return palette.label(self.variant) + (" (stale)" if self.row.stale else "")


@dataclass(frozen=True)
class Plot:
    """What is drawn for one machine."""

    metric: str
    marks: list[Mark]
    unit: tuple[float, str]
    ceiling: tuple[float, str] | None
    order: list[str]

    def show(self, value: float) -> str:
        return _text(value, *self.unit)


def render(spec: Mapping[str, Any], store: Any, page_evidence: object = None) -> str:
    """A chart as HTML: one panel a machine, each with title, static SVG (wide and narrow), source line and data table.

    Args:
        spec: kind ("bars", "lines" or "history"), case, metric, and as far as needed to name one row a mark: variants,
            shape, direction, dtype, mode, machine; over for "speedup"; x (a shape dimension) for "lines"; title with
            placeholders ({ours}, {ours@4096}, {eager/ours}, {ceiling}); note, a sentence below.
        store: a docs.publish.records.Store.

    Raises:
        ValueError: the spec names nothing, or more than one row a mark; the message says what was expected.
    """
    if unknown := set(spec) - KEYS:
        raise ValueError(f"chart: expected the arguments {sorted(KEYS)}, got {sorted(unknown)}")
    for key, known in (("kind", KINDS), ("metric", METRICS)):
        if spec.get(key) not in known:
            raise ValueError(f"chart: expected {key} to be one of {', '.join(known)}; got {spec.get(key)!r}")
    plots = {machine: plot for machine in _machines(spec, store) if (plot := _plot(spec, store, machine))}
    if not plots:
        raise ValueError(f"chart: no machine has rows for {_asked(spec)}")
    panels = [_panel(spec, machine, plot, shown=not index) for index, (machine, plot) in enumerate(plots.items())]
    return f'<div class="rp-chart" data-search-exclude>{"".join(panels)}</div>'


def bundle() -> str:
    """Vega, Vega-Lite and vega-embed as one script that sets window.vegaEmbed: the site's assets/vega.js."""
    name = f"vega-{vl_convert.__version__}-{VEGA_LITE}.js"
    return _cached(name, lambda: vl_convert.javascript_bundle(vl_version=VEGA_LITE))


# ---- from the record to marks ---------------------------------------------------------------------------------------


def _machines(spec: Mapping[str, Any], store: Any) -> list[str]:
    return [spec["machine"]] if spec.get("machine") else list(store.machines)


def _plot(spec: Mapping[str, Any], store: Any, machine: str) -> Plot | None:
    """The marks of one machine; None where it has measured nothing of this."""
    wanted = {key: spec[key] for key in ("direction", "dtype", "mode") if spec.get(key)}
    if spec.get("shape") and spec["kind"] != "lines":
        wanted["shape"] = spec["shape"]
    history = {"history": True} if spec["kind"] == "history" else {}
    rows = store.select(case=spec["case"], machine=machine, **wanted, **history)
    variants = spec.get("variants") or [name for name in palette.variants() if any(row.variant == name for row in rows)]
    marks = [mark for row in rows if row.variant in variants and (mark := _mark(spec, row)) is not None]
    if not marks:
        return None
    _one_row_each(spec, marks)
    present = [name for name in variants if any(mark.variant == name for mark in marks)]
    return Plot(spec["metric"], marks, _unit(spec["metric"], marks), _ceiling(spec["metric"], marks), present)


def _mark(spec: Mapping[str, Any], row: Any) -> Mark | None:
    """A row as a mark; None where the row has no such metric (memory on a CPU)."""
    if spec.get("over") == row.variant:
        return None
    value = row.metric(spec["metric"], over=spec["over"]) if spec.get("over") else row.metric(spec["metric"])
    if value is None:
        return None
    sign = SPREAD.get(spec["metric"])
    slow, fast = row.time.p80 / row.time.p50, row.time.p20 / row.time.p50
    ends = (value, value) if sign is None else sorted((value * slow**-sign, value * fast**-sign))
    return Mark(row.variant, _x(spec, row), value, ends[0], ends[1], row)


def _x(spec: Mapping[str, Any], row: Any) -> Any:
    if spec["kind"] == "bars":
        return None
    if spec["kind"] == "history":
        return row.record.date
    if spec.get("x") not in row.shape:
        raise ValueError(f"chart: expected x to be one of {', '.join(row.shape)}; got {spec.get('x')!r}")
    return row.shape[spec["x"]]


def _one_row_each(spec: Mapping[str, Any], marks: list[Mark]) -> None:
    seen: dict[tuple, Mark] = {}
    for mark in marks:
        other = seen.setdefault((mark.variant, mark.x), mark)
        if other is not mark:
            choices = {
                key: sorted({_plain(getattr(each.row, key)) for each in (mark, other)})
                for key in ("direction", "shape", "dtype", "mode")
            }
            open_choices = "; ".join(f"{key}: {' or '.join(values)}" for key, values in choices.items() if len(values) > 1)
            raise ValueError(f"chart: {_asked(spec)} names several rows of {mark.variant!r}; say which {open_choices}")


def _ceiling(metric: str, marks: list[Mark]) -> tuple[float, str] | None:
    """The height of the dashed line and what it is, from the newest row's own record."""
    row = marks[-1].row
    ceilings = row.record.ceilings
    if metric == "share":
        return 1.0, f"measured {row.mix} ceiling"
    if metric == "bandwidth":
        return ceilings["bandwidth"][row.mix]["rate"], f"measured {row.mix} ceiling"
    regime = "sustained" if row.mode == "sustained" else "burst"
    if metric == "rate_share":
        return 1.0, f"measured {regime} ceiling"
    if metric == "rate" and row.dtype in ceilings["matrix"]:
        return ceilings["matrix"][row.dtype][regime]["rate"], f"measured {regime} ceiling"
    return None


def _unit(metric: str, marks: list[Mark]) -> tuple[float, str]:
    """One unit for the whole plot: the largest in which the middle value is at least one."""
    middle = sorted(mark.value for mark in marks)[len(marks) // 2]
    fitting = [step for step in METRICS[metric].units if step[0] <= middle]
    return fitting[-1] if fitting else METRICS[metric].units[0]


def _text(value: float, scale: float, unit: str) -> str:
    """Three significant digits and a unit: "4.05 TB/s", "88%"."""
    number = value / scale
    if unit == "%":
        return f"{number:.0f}%"
    digits = 0 if number == 0 else max(0, 2 - math.floor(math.log10(abs(number))))
    written = f"{number:.0f}" if float(number).is_integer() else f"{number:.{min(digits, 4)}f}"
    return written + {"": "", "×": "×"}.get(unit, f" {unit}")


# ---- what the title says --------------------------------------------------------------------------------------------


def _title(spec: Mapping[str, Any], plot: Plot) -> str:
    """The title with its placeholders filled: {ours}, {ours@4096}, {eager/ours} (a ratio of values), {ceiling}."""
    return re.sub(r"\{([^{}]+)\}", lambda found: _filled(spec, plot, found.group(1)), spec.get("title", ""))


def _filled(spec: Mapping[str, Any], plot: Plot, asked: str) -> str:
    if asked == "ceiling" and plot.ceiling:
        return plot.show(plot.ceiling[0])
    names = [part.strip() for part in asked.split("/")]
    values = [_at(spec, plot, name) for name in names]
    if None in values:  # this machine has not measured it
        return "–"
    return plot.show(values[0]) if len(values) == 1 else _text(values[0] / values[1], 1, "×")


def _at(spec: Mapping[str, Any], plot: Plot, name: str) -> float | None:
    """The value of a variant, on lines at the x after "@", else at the title's shape, else at the largest."""
    variant, _, x = name.partition("@")
    if variant not in palette.variants():
        raise ValueError(f"chart: {{{name}}} in the title: expected one of {', '.join(plot.order)}")
    its = [mark for mark in plot.marks if mark.variant == variant]
    if x:
        its = [mark for mark in its if str(mark.x) == x]
    elif spec.get("shape") and spec["kind"] == "lines":
        its = [mark for mark in its if _plain(mark.row.shape) == spec["shape"]]
    return max(its, key=lambda mark: (mark.x is not None, mark.x)).value if its else None


# ---- drawings -------------------------------------------------------------------------------------------------------


def _bars(plot: Plot, width: int) -> dict:
    """Sorted bars, best first, each with its name and value; names stand above the bars on a phone."""
    narrow = width < 500
    best_first = sorted(plot.marks, key=lambda mark: mark.value, reverse=not METRICS[plot.metric].lower)
    left = 4 if narrow else _room(mark.label for mark in best_first) + 12
    right = _room((plot.show(mark.value) for mark in best_first), bold=True) + 22
    step, thickness = (46, 16) if narrow else (34, 20)
    drawn = width - left - right
    top = max([mark.high for mark in best_first] + ([plot.ceiling[0]] if plot.ceiling else []))
    scale = alt.Scale(domain=[0, top / plot.unit[0]], nice=False)

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
        base.mark_bar(size=thickness, yOffset=middle).encode(
            x=x("value"), color=_colour(), tooltip=_tooltip(plot)
        ),
        base.mark_rule(color=INK, strokeWidth=1.2, yOffset=middle).encode(x=x("low"), x2="high:Q"),
        value.encode(x=alt.value(width - left - 4), text="text:N") if plot.ceiling else value.encode(x=x("high"), text="text:N"),
        base.mark_text(
            align="left" if narrow else "right", dx=0 if narrow else -10, dy=-10 if narrow else 0, color=INK, fontSize=TEXT
        ).encode(x=alt.value(0), text="label:N"),
    ]
    if plot.ceiling:
        layers[:0] = _ceiling_layers(plot, x("value"))
    return _finished(layers, drawn, step * len(best_first), {"left": left, "right": right, "top": 24 if plot.ceiling else 4, "bottom": 4})


def _lines(plot: Plot, width: int) -> dict:
    """Lines over a size that doubles, each with its name and last value at its end."""
    sizes = sorted({mark.x for mark in plot.marks})
    x = alt.X(
        "x:Q",
        scale=alt.Scale(type="log", base=2, domain=[sizes[0], sizes[-1]], nice=False),
        axis=_axis(values=_ticks(sizes, width), labelExpr="datum.value", ticks=True, tickColor=LINE, domain=True, domainColor=INK),
    )
    return _curves(plot, width, x, {size: size for size in sizes})


def _history(plot: Plot, width: int) -> dict:
    """A metric over the dates of its runs."""
    dates = sorted({mark.x for mark in plot.marks})
    x = alt.X("x:T", axis=_axis(format="%d %b %Y", values=dates[:: max(1, len(dates) // (2 if width < 500 else 5))], domain=True))
    return _curves(plot, width, x, {date: date for date in dates})


KINDS: dict[str, Callable[[Plot, int], dict]] = {"bars": _bars, "lines": _lines, "history": _history}


def _curves(plot: Plot, width: int, x: alt.X, places: Mapping[Any, Any]) -> dict:
    narrow = width < 500
    height = 270 if narrow else 300
    unit = plot.unit[0]
    values = [mark.value for mark in plot.marks] + ([plot.ceiling[0]] if plot.ceiling else [])
    logarithmic = METRICS[plot.metric].lower and max(values) > 30 * max(min(values), 1e-30)
    bottom, top = (min(values) / unit / 1.3 if logarithmic else 0), max(values) / unit * (1.3 if logarithmic else 1.06)
    scale = alt.Scale(type="log" if logarithmic else "linear", domain=[bottom, top], nice=False)
    axis = _axis(grid=True, gridColor=LINE, gridWidth=0.6, tickCount=5, format=",~r", domain=False)

    def y(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", scale=scale, axis=axis)

    ends = _end_labels(plot, height, bottom, top, logarithmic)
    right = _room((end["label"] for end in ends), bold=True) + 16
    left = _room([_text(top, 1, "")]) + 14
    drawn = width - left - right
    base = alt.Chart(_data(plot, plot.marks)).encode(x=x, color=_colour())
    layers = [
        base.mark_rule(strokeWidth=1.4).encode(y=y("low"), y2="high:Q"),
        base.mark_line(strokeWidth=2.2, interpolate="linear").encode(y=y("value"), detail="variant:N"),
        base.mark_point(filled=True, size=38, opacity=1).encode(y=y("value"), tooltip=_tooltip(plot)),
        alt.Chart(alt.Data(values=ends)).mark_text(align="left", dx=10, fontSize=TEXT, fontWeight=600).encode(
            x=alt.value(drawn), y=y("place"), text="label:N", color=_colour()
        ),
        alt.Chart(alt.Data(values=[{"unit": plot.unit[1]}])).mark_text(
            align="left", dx=-left + 2, dy=-14, fontSize=SMALL, color=SOFT
        ).encode(x=alt.value(0), y=alt.value(0), text="unit:N"),
    ]
    if plot.ceiling:
        layers[:0] = _ceiling_layers(plot, y("value"))
    return _finished(layers, drawn, height, {"left": left, "right": right, "top": 24, "bottom": 24})


def _end_labels(plot: Plot, height: int, bottom: float, top: float, logarithmic: bool) -> list[dict]:
    """A label for each line at its last point, pushed apart where they would overlap; places are in display units."""
    warp, unwarp = (math.log, math.exp) if logarithmic else (float, float)
    span = (warp(top) - warp(bottom)) or 1
    last = [max((mark for mark in plot.marks if mark.variant == name), key=lambda mark: mark.x) for name in plot.order]
    last.sort(key=lambda mark: mark.value, reverse=True)
    pixels = [height * (1 - (warp(mark.value / plot.unit[0]) - warp(bottom)) / span) for mark in last]
    apart = _apart(pixels, TEXT + 3, height)
    return [
        {
            "label": f"{mark.label} {_text(mark.value, plot.unit[0], '%' if plot.unit[1] == '%' else '')}",
            "colour": palette.colour(mark.variant),
            "place": unwarp(warp(bottom) + span * (1 - pixel / height)),
        }
        for mark, pixel in zip(last, apart, strict=True)
    ]


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


def _ceiling_layers(plot: Plot, at: alt.X | alt.Y) -> list[alt.Chart]:
    """The dashed line with its name: upright at an x, level at a y."""
    assert plot.ceiling
    value = plot.ceiling[0] / plot.unit[0]
    text = plot.ceiling[1] if plot.unit[1] == "%" else f"{plot.ceiling[1]} {plot.show(plot.ceiling[0])}"
    base = alt.Chart(alt.Data(values=[{"value": value, "text": text}]))
    upright = isinstance(at, alt.X)
    where: dict[str, Any] = {"x": at, "y": alt.value(0)} if upright else {"y": at, "x": alt.value(0)}
    name = base.mark_text(color=SOFT, fontSize=SMALL, dy=-9, align="right" if upright else "left")
    dashed = base.mark_rule(color=CEILING, strokeWidth=1.3, strokeDash=[5, 4])
    return [dashed.encode(at), name.encode(text="text:N", **where)]


def _data(plot: Plot, marks: list[Mark]) -> alt.Data:
    scale = plot.unit[0]
    return alt.Data(
        values=[
            {
                "key": str(index),
                "variant": mark.variant,
                "label": mark.label,
                "colour": palette.colour(mark.variant),
                "x": mark.x,
                "value": mark.value / scale,
                "low": mark.low / scale,
                "high": mark.high / scale,
                "text": plot.show(mark.value),
                "spread": f"{plot.show(mark.low)} to {plot.show(mark.high)}",
                "where": _plain(mark.row.shape),
            }
            for index, mark in enumerate(marks)
        ]
    )


def _tooltip(plot: Plot) -> list[alt.Tooltip]:
    shown = {"label": "variant", "where": "shape", "text": "median"}
    if plot.metric in SPREAD:
        shown["spread"] = "p20 to p80"
    return [alt.Tooltip(f"{field}:N", title=title) for field, title in shown.items()]


def _colour() -> alt.Color:
    return alt.Color("colour:N", scale=None)


def _axis(**settings: Any) -> alt.Axis:
    plain = {"title": None, "grid": False, "ticks": False, "domainColor": INK, "labelColor": SOFT, "labelFontSize": SMALL}
    return alt.Axis(**(plain | {"labelPadding": 6, "labelOverlap": False} | settings))


def _ticks(sizes: list[int], width: int) -> list[int]:
    """The sizes to label: as many as there is room for, the largest always."""
    most = max(2, (width - 150) // (9 * len(str(sizes[-1])) + 10))
    every = math.ceil(len(sizes) / most)
    return sizes[::-1][::every][::-1]


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


def _panel(spec: Mapping[str, Any], machine: str, plot: Plot, shown: bool) -> str:
    title = _title(spec, plot)
    record = plot.marks[-1].row.record
    drawings = "".join(
        _drawing(KINDS[spec["kind"]](plot, width), size, f"{title} {_spoken(plot)}")
        for size, width in (("wide", 720), ("narrow", 350))
    )
    note = f" {escape(spec['note'])}" if spec.get("note") else ""
    return (
        f'<figure class="rp-chart__panel{" rp-shown" if shown else ""}" data-machine="{machine}" data-name="{escape(_name(record))}">'
        f'<figcaption><div class="rp-chart__title">{escape(title)}</div>'
        f'<div class="rp-chart__what">{escape(_what(spec, plot))}</div></figcaption>'
        f"{drawings}"
        f'<p class="rp-chart__source">{escape(_name(record))}, {record.date[:10]}.{note}</p>'
        f"<details><summary>The numbers</summary>{_table(spec, plot)}</details></figure>"
    )


def _drawing(spec: dict, size: str, spoken: str) -> str:
    data = json.dumps(spec, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<div class="rp-chart__plot rp-chart__plot--{size}"><div role="img" aria-label="{escape(spoken)}">{_svg(spec)}</div>'
        f'<script type="application/json">{data}</script></div>'
    )


def _svg(spec: dict) -> str:
    """The static drawing, from the cache where this very spec was drawn before."""
    text = json.dumps(spec, sort_keys=True)
    key = hashlib.sha256(f"{vl_convert.__version__}{text}".encode()).hexdigest()[:20]
    drawn = _cached(f"{key}.svg", lambda: vl_convert.vegalite_to_svg(text, vl_version=VEGA_LITE))
    drawn = drawn[drawn.index("<svg") :]
    return re.sub(r'(id="|url\(#)', rf"\g<1>c{key[:8]}-", drawn).replace("\n", " ")


def _cached(name: str, make: Callable[[], str]) -> str:
    path = CACHE / name
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(make(), encoding="utf-8")
        partial.replace(path)
    return path.read_text(encoding="utf-8")


def _table(spec: Mapping[str, Any], plot: Plot) -> str:
    """The drawn numbers, one row each."""
    heads = ["variant", *([] if spec["kind"] == "bars" else [spec.get("x") or "date"]), METRICS[plot.metric].name.lower()]
    spread = plot.metric in SPREAD
    rows = [
        [mark.label, *([] if mark.x is None else [str(mark.x)]), plot.show(mark.value)]
        + ([f"{plot.show(mark.low)} to {plot.show(mark.high)}"] if spread else [])
        for mark in plot.marks
    ]
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads + (["p20 to p80"] if spread else []))
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(text)}</td>" for text in row[1:]) + "</tr>"
        for row in rows
    )
    return f'<div class="rp-scroll"><table class="rp-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _what(spec: Mapping[str, Any], plot: Plot) -> str:
    """One line under the title: what is drawn, and where it was measured."""
    metric, row = METRICS[plot.metric], plot.marks[-1].row
    better = "less is better" if metric.lower else "more is better"
    over = f" over {palette.label(spec['over'])}" if spec.get("over") else ""
    along = f", by {spec['x']}" if spec["kind"] == "lines" else ""
    shape = f", {_plain(row.shape).replace('x', '×')}" if spec["kind"] != "lines" else ""
    return f"{metric.name}{over}{along}; {better}. {row.direction.capitalize()}, {row.dtype}{shape}"


def _spoken(plot: Plot) -> str:
    """The drawing in words, for those who cannot see it."""
    return "; ".join(
        f"{mark.label}{'' if mark.x is None else f' at {mark.x}'} {plot.show(mark.value)}" for mark in plot.marks
    )


def _name(record: Any) -> str:
    return record.machine["name"]


def _plain(value: Any) -> str:
    return "x".join(map(str, value.values())) if isinstance(value, Mapping) else str(value)


def _asked(spec: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in spec.items() if key not in {"title", "note", "kind"})

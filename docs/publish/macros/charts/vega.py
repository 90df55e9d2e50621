"""The pieces of a Vega-Lite specification that all kinds of charts are made of."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from docs.publish import palette, units
from docs.publish.macros.charts.marks import Mark, Plot

Spec = dict[str, Any]
VERSION = "6.4"  # of Vega-Lite: the newest that vl-convert draws

INK, SOFT, LINE, CEILING, PAPER, ACCENT = (
    palette.colour(name) for name in ("ink", "ink-soft", "line", "ceiling", "paper", "accent")
)
FONT, TEXT, SMALL = "Ridgepoint Serif", 14, 12.5
CHARACTER = 0.53  # width of an average character, in font sizes: reserves room for labels


def layer(mark: str, encoding: Spec, data: Sequence[Spec] = (), **settings: Any) -> Spec:
    """Marks of one type: of `data`, or else of the data that all layers share."""
    source = {"data": {"values": list(data)}} if data else {}
    return source | {"mark": {"type": mark} | settings, "encoding": encoding}


def name(field: str, **settings: Any) -> Spec:
    """A channel that shows a field's words."""
    return {"field": field, "type": "nominal"} | settings


def number(field: str, **settings: Any) -> Spec:
    """A channel that shows a field's number."""
    return {"field": field, "type": "quantitative"} | settings


def pixel(value: float) -> Spec:
    """A channel that is the same for all marks: so many pixels from the left, or from the top."""
    return {"value": value}


def colour() -> Spec:
    """The channel of a variant's own colour."""
    return name("colour", scale=None)


def tooltip(plot: Plot) -> list[Spec]:
    """What opens above a mark."""
    shown = {"label": "variant", "where": "shape", "text": "median"}
    if plot.measure.power:
        shown["spread"] = plot.spread_of
    return [name(field, title=title) for field, title in shown.items()]


def axis(**settings: Any) -> Spec:
    """A quiet axis, but for what is set."""
    plain = {
        "title": None, "grid": False, "ticks": False, "domainColor": INK, "labelColor": SOFT, "labelFontSize": SMALL,
        "labelPadding": 6, "labelOverlap": False,
    }  # fmt: skip
    return plain | settings


def data(plot: Plot, marks: list[Mark]) -> list[Spec]:
    """The marks as Vega-Lite sees them, in the plot's unit."""
    scale, winners = plot.scale, plot.winners
    return [
        {
            "key": str(index),
            "variant": mark.variant,
            "label": mark.label(),
            "colour": palette.colour(mark.variant),
            "x": mark.x,
            "value": mark.value / scale,
            "low": mark.low / scale,
            "high": mark.high / scale,
            "text": plot.label(mark),
            "spread": plot.spread(mark),
            "where": units.size(mark.row.size, "×"),
            "wins": mark in winners,
        }
        for index, mark in enumerate(marks)
    ]


def ceiling(plot: Plot, channel: str, encoding: Spec, before: float = 0) -> list[Spec]:
    """The dashed line with its name, if there is one: upright at an x, level at a y.

    The name ends at an upright line, or begins at the left where the pixels before the line are too few for it.
    """
    if plot.ceiling is None:
        return []
    height, label = plot.ceiling
    text = label if plot.unit == "%" else f"{label} {plot.show(height)}"
    values = [{"value": height / plot.scale, "text": text}]
    upright = channel == "x"
    ends = upright and room([text]) * SMALL / TEXT <= before
    where = {"x": encoding if ends else pixel(0), "y": pixel(0) if upright else encoding, "text": name("text")}
    return [
        layer("rule", {channel: encoding}, values, color=CEILING, strokeWidth=1.3, strokeDash=[5, 4]),
        layer("text", where, values, color=SOFT, fontSize=SMALL, dy=-9, align="right" if ends else "left"),
    ]


def room(texts: Iterable[str], bold: bool = False) -> int:
    """Pixels that the longest text needs."""
    return math.ceil(max(map(len, texts), default=0) * TEXT * (CHARACTER + 0.04 * bold))


def chart(layers: list[Spec], values: list[Spec], width: int, height: int, padding: dict[str, int]) -> Spec:
    """The whole specification. The size is fixed: the interactive drawing takes exactly the static one's place."""
    return {
        "$schema": f"https://vega.github.io/schema/vega-lite/v{VERSION}.0.json",
        "width": width,
        "height": height,
        "padding": padding,
        "autosize": {"type": "none"},
        "background": "transparent",
        "config": {"font": FONT, "aria": False, "view": {"stroke": None}},
        "data": {"values": values},
        "layer": layers,
    }

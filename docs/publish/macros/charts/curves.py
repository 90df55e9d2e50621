"""Curves over a size, each with its name and last value at its end."""

import json
import math
from collections.abc import Mapping
from typing import Any

from docs.publish import palette, units
from docs.publish.macros.charts import vega
from docs.publish.macros.charts.height import Height, apart
from docs.publish.macros.charts.marks import Mark, Plot
from docs.publish.macros.charts.vega import INK, LINE, SMALL, SOFT, TEXT, Spec

# sizes that are whole multiples of 2^20 in words that fit below an axis: 536870912 is 512 Mi
BINARY = "datum.value % 1048576 == 0 ? datum.value / 1048576 + ' Mi' : datum.value"


def lines(plot: Plot, width: int) -> Spec:
    """Over a size that doubles."""
    sizes = sorted({mark.x for mark in plot.marks})
    labelled = _ticks(sizes, width)
    axis = vega.axis(values=labelled, labelExpr=BINARY, ticks=True, tickColor=LINE, domain=True, domainColor=INK)
    scale = {"type": "log", "base": 2, "domain": [sizes[0], sizes[-1]], "nice": False}
    long = math.log(sizes[-1] / sizes[0]) or 1
    parts = {size: math.log(size / sizes[0]) / long for size in sizes}
    return _curves(plot, width, vega.number("x", scale=scale, axis=axis), parts)


def _curves(plot: Plot, width: int, x: Spec, parts: Mapping[Any, float]) -> Spec:
    """Curves; `parts` has the places at which names may stand, as parts of the way across."""
    narrow = width < 500
    height = Height.of(plot, pixels=270 if narrow else 300)
    ends = _ends(plot, height, short=narrow)
    ticks = {value: _tick(plot, height, value) for value in height.ticks()}
    left = vega.room(ticks.values()) + 12
    # each name begins where its curve ends, and all of them end on the drawing
    beside = [(parts.get(end["x"], 0), width - left - vega.room([end["label"]], bold=True) - 14) for end in ends]
    drawn = min([width - left - 14, *(math.floor(free / part) for part, free in beside if part)])
    right = width - left - drawn
    scale = {
        "type": "log" if height.logarithmic else "linear",
        "domain": [height.bottom, height.top],
        "nice": False,
        "zero": False,
    }
    names = json.dumps(list(ticks.values()), ensure_ascii=False)
    axis = vega.axis(
        grid=True,
        gridColor=LINE,
        gridWidth=0.6,
        values=list(ticks),
        labelExpr=f"{names}[indexof({list(ticks)}, datum.value)]",
        domain=False,
    )

    def y(field: str) -> Spec:
        return vega.number(field, scale=scale, axis=axis)

    shared = {"x": x, "color": vega.colour()}
    layers = [
        *vega.ceiling(plot, "y", y("value")),
        vega.layer("rule", shared | {"y": y("low"), "y2": {"field": "high"}}, strokeWidth=1.4),
        vega.layer("line", shared | {"y": y("value"), "detail": vega.name("variant")}, strokeWidth=2.2),
        vega.layer("point", shared | {"y": y("value"), "tooltip": vega.tooltip(plot)}, filled=True, size=38, opacity=1),
        vega.layer(
            "text",
            shared | {"y": y("place"), "text": vega.name("label")},
            ends,
            align="left",
            dx=10,
            fontSize=TEXT,
            fontWeight=600,
        ),
    ]
    if not height.logarithmic:
        corner = {"x": vega.pixel(0), "y": vega.pixel(0), "text": vega.name("unit")}
        layers.append(
            vega.layer(
                "text", corner, [{"unit": plot.unit}], align="left", dx=2 - left, dy=-14, fontSize=SMALL, color=SOFT
            )
        )
    top = 12 if height.logarithmic and not plot.ceiling else 24
    padding = {"left": left, "right": right, "top": top, "bottom": 24}
    return vega.chart(layers, vega.data(plot, plot.marks), drawn, height.pixels, padding)


def _ends(plot: Plot, height: Height, short: bool) -> list[Spec]:
    """A label for each curve at its last point. Those that would overlap are pushed apart."""
    last_marks = [max((m for m in plot.marks if m.variant == name), key=lambda mark: mark.x) for name in plot.variants]
    last_marks.sort(key=lambda mark: mark.value, reverse=True)
    labels = []
    below = height.pixel(plot.ceiling[0] / plot.scale) + 7 if plot.ceiling else 0.0  # the ceiling's name is above it
    for x in dict.fromkeys(mark.x for mark in last_marks):
        marks = [mark for mark in last_marks if mark.x == x]
        pixels = apart([height.pixel(mark.value / plot.scale) for mark in marks], TEXT + 3, height.pixels, below)
        labels += [
            {
                "label": f"{mark.label(short)} {_number(plot, height, mark)}",
                "colour": palette.colour(mark.variant),
                "x": x,
                "place": height.value(pixel),
            }
            for mark, pixel in zip(marks, pixels, strict=True)
        ]
    return labels


def _tick(plot: Plot, height: Height, value: float) -> str:
    """The axis' label at a value: with its unit where the axis spans several."""
    if height.logarithmic:
        return units.text(value * plot.scale, plot.measure.unit, exact=True)
    return f"{value:,g}"


def _number(plot: Plot, height: Height, mark: Mark) -> str:
    """A value as its curve's label has it: without a unit where that stands at the axis."""
    if mark.published.runs:
        return plot.label(mark)
    if height.logarithmic:
        return plot.best(mark.value)
    return plot.show(mark.value) if plot.unit == "%" else units.digits(mark.value / plot.scale)


def _ticks(sizes: list[int], width: int) -> list[int]:
    """The sizes to label, as far as there is room: both ends before others, powers of two before the rest."""
    doubling = (width - 150) / max(1, math.log2(sizes[-1] / sizes[0]))  # pixels; 150 are for names beside the lines
    half = {size: 3.5 * len(str(size)) for size in sizes}  # a label's
    inwards = {sizes[0]: half[sizes[0]], sizes[-1]: half[sizes[-1]]}  # the first and the last reach in from their ticks
    kept: list[int] = []
    for size in [sizes[-1], *sorted(sizes[:-1], key=lambda size: (size != sizes[0], size & (size - 1) != 0, -size))]:
        reach = half[size] + inwards.get(size, 0) + 8
        if all(
            abs(math.log2(size / other)) * doubling >= reach + half[other] + inwards.get(other, 0) for other in kept
        ):
            kept.append(size)
    return sorted(kept)

"""Bars, best first or in the order of the page's story, each with its name and value, the winner's in bold.

A bar is as long as its value. So where the axis does not begin at zero, dots stand in the place of bars.
"""

from docs.publish.macros.charts import vega
from docs.publish.macros.charts.marks import Plot
from docs.publish.macros.charts.vega import INK, LINE, SMALL, SOFT, TEXT, Spec


def bars(plot: Plot, width: int) -> Spec:
    """Names stand before the bars; on a phone above them."""
    narrow = width < 500
    if plot.ranked:
        ordered = sorted(plot.marks, key=lambda mark: mark.value, reverse=not plot.measure.lower_is_better)
    else:
        ordered = sorted(plot.marks, key=lambda mark: plot.variants.index(mark.variant))
    left = 4 if narrow else vega.room((mark.label() for mark in ordered), bold=True) + 12
    right = vega.room((plot.label(mark) for mark in ordered), bold=True) + 22
    weight = {"expr": "datum.wins ? 600 : 400"}
    step, thickness, middle = (46, 16, 8) if narrow else (34, 20, 0)
    drawn = width - left - right
    top = max([mark.high for mark in ordered] + ([plot.ceiling[0]] if plot.ceiling else []))
    start = plot.start
    scale = {"domain": [start / plot.scale, top / plot.scale], "nice": False, "zero": False}
    y = vega.name("key", sort=None, axis=None, scale={"paddingInner": 0, "paddingOuter": 0})

    def x(field: str) -> Spec:
        return vega.number(field, axis=None, scale=scale)

    # Past a ceiling the values stand in a column, where the dashed line does not cross them.
    column: Spec = {"align": "right", "dx": 0} if plot.ceiling else {"align": "left", "dx": 9}
    beside: Spec = {"align": "left", "dx": 0, "dy": -10} if narrow else {"align": "right", "dx": -10, "dy": 0}
    before = left + drawn * (plot.ceiling[0] - start) / (top - start) if plot.ceiling else 0
    layers = [
        *vega.ceiling(plot, "x", x("value"), before),
        *_bodies(plot, x("value"), y, thickness, middle),
        vega.layer(
            "rule", {"x": x("low"), "x2": {"field": "high"}, "y": y}, color=INK, strokeWidth=1.2, yOffset=middle
        ),
        vega.layer(
            "text",
            {"x": vega.pixel(width - left - 4) if plot.ceiling else x("high"), "y": y, "text": vega.name("text")},
            yOffset=middle,
            color=INK,
            fontSize=TEXT,
            fontWeight=weight,
            **column,
        ),
        vega.layer(
            "text",
            {"x": vega.pixel(0), "y": y, "text": vega.name("label")},
            color=INK,
            fontSize=TEXT,
            fontWeight=weight,
            **beside,
        ),
    ]
    if start:
        corner = {"x": vega.pixel(0), "y": vega.pixel(step * len(ordered)), "text": vega.name("text")}
        begins = {"text": plot.begins}
        layers.append(vega.layer("text", corner, [begins], align="left", dy=10, fontSize=SMALL, color=SOFT))
    padding = {"left": left, "right": right, "top": 24 if plot.ceiling else 4, "bottom": 22 if start else 4}
    return vega.chart(layers, vega.data(plot, ordered), drawn, step * len(ordered), padding)


def _bodies(plot: Plot, x: Spec, y: Spec, thickness: int, middle: int) -> list[Spec]:
    """What shows the values: bars from zero, or dots on lines where the axis begins elsewhere."""
    shown = {"x": x, "y": y, "color": vega.colour(), "tooltip": vega.tooltip(plot)}
    if not plot.start:
        return [vega.layer("bar", shown, size=thickness, yOffset=middle)]
    whole = {"x": vega.pixel(0), "x2": {"value": "width"}, "y": y}
    return [
        vega.layer("rule", whole, color=LINE, strokeWidth=1, yOffset=middle),
        vega.layer("point", shown, filled=True, size=150, opacity=1, yOffset=middle),
    ]

"""A machine's roofline as Vega-Lite."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from docs.publish import palette, units
from docs.publish.macros.charts import vega
from docs.publish.macros.charts.height import Height
from docs.publish.macros.charts.roofline.names import LINE_HEIGHT, Across, ends
from docs.publish.macros.charts.roofline.plot import Plot, Stem, rate
from docs.publish.macros.charts.vega import INK, LINE, SMALL, SOFT, Spec

DECADE = {False: 74, True: 58}  # pixels of a factor of ten in the rate; the second on a phone
HEAD = 44  # pixels above the level roof, for names
LEFT, RIGHT, TOP, BOTTOM = 42, 10, 16, 44  # pixels around the drawing
SMALL_TEXT: Spec = {"fontSize": SMALL, "color": SOFT}


@dataclass(frozen=True)
class Frame:
    """Both scales, and the unit of the rates.

    Attributes:
        written: the names of the stems, as they are written.
        ends: where the stems end, in pixels from the top.
    """

    narrow: bool
    unit: str
    across: Across
    height: Height
    written: list[str]
    ends: list[float]

    @classmethod
    def of(cls, plot: Plot, width: int) -> "Frame":
        """As high as the names need."""
        narrow = width < 500
        across = Across.of([stem.intensity for stem in plot.every], width - LEFT - RIGHT)
        highest = max(plot.roofs.matrix.value, *(stem.rates[0] / 2 for stem in plot.every))
        top = highest * 10 ** (HEAD / DECADE[narrow])
        decade = Height(top / 10, top, True, DECADE[narrow])
        written = [stem.name.replace(", ", ",\n") if narrow else stem.name for stem in plot.stems]
        found = ends(plot, written, across, decade.pixel)
        lines = [end + LINE_HEIGHT * name.count("\n") for end, name in zip(found, written, strict=True)]
        points = [decade.pixel(rate) for stem in plot.every for rate in stem.rates]
        lowest = max(*lines, *points) + LINE_HEIGHT
        height = Height(decade.value(lowest), top, True, math.ceil(lowest))
        return cls(narrow, plot.roofs.matrix.text.split()[-1], across, height, written, found)

    @property
    def scale(self) -> float:
        return units.NAMED[self.unit][0]

    @property
    def steep(self) -> float:
        """Degrees by which the sloped roof rises."""
        decades = math.log10(self.across.high / self.across.low)
        return math.degrees(math.atan(DECADE[self.narrow] * decades / self.across.pixels))

    def x(self) -> Spec:
        """The channel of the field x."""
        powers = [4.0**power for power in range(-4, 12)][:: 2 if self.narrow else 1]
        shown = [power for power in powers if self.across.low <= power <= self.across.high]
        fraction = "datum.value < 1 ? '1/' + 1 / datum.value : datum.value"
        axis = vega.axis(values=shown, labelExpr=fraction, ticks=True, tickColor=LINE)
        return vega.number("x", scale=_log(2, self.across.low, self.across.high), axis=axis)

    def y(self, field: str = "y") -> Spec:
        """The channel of a field that is a rate in the frame's unit."""
        ticks = [tick / self.scale for tick in self.height.ticks()]
        axis = vega.axis(grid=True, gridColor=LINE, gridWidth=0.6, values=ticks, domain=False, labelExpr="datum.value")
        low, high = self.height.bottom / self.scale, self.height.top / self.scale
        return vega.number(field, scale=_log(10, low, high), axis=axis)


def spec(plot: Plot, width: int) -> Spec:
    """The drawing in one of its widths."""
    frame = Frame.of(plot, width)
    here = {"x": frame.x(), "y": frame.y()}
    shown = {"place": "what", "label": "variant", "intensity": "intensity", "rate": "rate"}
    dot = here | {"color": vega.colour(), "tooltip": [vega.name(field, title=title) for field, title in shown.items()]}
    halo = {"stroke": vega.PAPER, "strokeWidth": 1.2, "filled": True, "opacity": 1}
    ring = {"fill": vega.PAPER, "stroke": vega.ACCENT, "strokeWidth": 2.6, "opacity": 1}
    apart = [stem for stem in plot.stems if stem not in plot.line]
    stems = _stems(plot, frame)
    outline = _roof(plot, frame, frame.across.low, plot.roofs.ridge.value, frame.across.high)
    layers = [
        vega.layer("rule", here | {"y2": {"field": "end"}}, stems, color=LINE, strokeWidth=1.2),
        vega.layer("line", here, outline, color=INK, strokeWidth=2.2, strokeJoin="round"),
        vega.layer("line", here, _points(plot.line, frame), color=SOFT, strokeWidth=1),
        vega.layer("point", dot, _points(plot.line, frame), size=26, **halo),
        *([vega.layer("point", dot, _points(apart, frame), size=62, **halo)] if apart else []),
        vega.layer("point", here, _roof(plot, frame, plot.roofs.ridge.value), size=110, **ring),
        *_names(plot, frame, stems),
        *_captions(plot, frame),
    ]
    padding = {"left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM}
    return vega.chart(layers, [], frame.across.pixels, frame.height.pixels, padding)


def _log(base: int, low: float, high: float) -> Spec:
    return {"type": "log", "base": base, "domain": [low, high], "nice": False}


def _points(stems: Sequence[Stem], frame: Frame) -> list[Spec]:
    """The fastest last, so that it is drawn above the others."""
    return [
        {
            "x": stem.intensity,
            "y": rate(row) / frame.scale,
            "place": stem.name,
            "label": palette.label(row.variant, case=row.case),
            "colour": palette.colour(row.variant),
            "intensity": units.text(stem.intensity, "FLOP/byte"),
            "rate": units.text(rate(row), "FLOP/s"),
        }
        for stem in stems
        for row in reversed(stem.rows)
    ]


def _stems(plot: Plot, frame: Frame) -> list[Spec]:
    return [
        {
            "x": stem.intensity,
            "y": stem.rates[0] / frame.scale,
            "end": frame.height.value(end) / frame.scale,
            "text": name,
        }
        for stem, end, name in zip(plot.stems, frame.ends, frame.written, strict=True)
    ]


def _roof(plot: Plot, frame: Frame, *intensities: float) -> list[Spec]:
    """Points of the roofs."""
    return [{"x": at, "y": plot.roofs.at(at) / frame.scale} for at in intensities]


def _names(plot: Plot, frame: Frame, stems: list[Spec]) -> list[Spec]:
    """The stems' names, on the side of the ridge point."""
    ridge = plot.roofs.ridge.value
    sides = {
        "left": [stem for stem in stems if stem["x"] <= ridge],
        "right": [stem for stem in stems if stem["x"] > ridge],
    }
    place = {"x": frame.x(), "y": frame.y("end"), "text": vega.name("text")}
    lines = SMALL_TEXT | {"lineBreak": "\n", "lineHeight": LINE_HEIGHT}
    return [
        vega.layer("text", place, side, align=align, dx=4 if align == "left" else -4, **lines)
        for align, side in sides.items()
        if side
    ]


def _captions(plot: Plot, frame: Frame) -> list[Spec]:
    """What the roofs, the ridge point and the axes are; a phone has room for the roofs' numbers only."""
    roofs, narrow = plot.roofs, frame.narrow
    (corner,) = _roof(plot, frame, roofs.ridge.value)
    (middle,) = _roof(plot, frame, math.sqrt(roofs.ridge.value * max(frame.across.low, roofs.ridge.value / 32)))
    sloped = middle | {"text": roofs.memory.text if narrow else f"memory: {roofs.memory.text}"}
    level = corner | {"text": roofs.matrix.text if narrow else f"arithmetic, {roofs.dtype}: {roofs.matrix.text}"}
    place = {"x": frame.x(), "y": frame.y(), "text": vega.name("text")}
    strong: Spec = {"fontSize": vega.TEXT, "fontWeight": 600, "color": INK}

    def at(x: float, y: float, text: str, **settings: float | str) -> Spec:
        where = {"x": vega.pixel(x), "y": vega.pixel(y), "text": vega.name("text")}
        return vega.layer("text", where, [{"text": text}], **SMALL_TEXT, **settings)

    return [
        vega.layer("text", place, [sloped], align="center", angle=360 - frame.steep, dy=-9, **SMALL_TEXT),
        vega.layer("text", place, [level], align="left", dx=12, dy=-10, **SMALL_TEXT),
        vega.layer("text", place, [corner | {"text": "ridge point"}], align="right", dx=-10, dy=-24, **strong),
        vega.layer("text", place, [corner | {"text": roofs.ridge.text}], align="right", dx=-10, dy=-8, **SMALL_TEXT),
        at(0, 0, frame.unit, align="left", dx=2 - LEFT, dy=-8),
        at(frame.across.pixels, frame.height.pixels, "FLOP per byte", align="right", dy=36),
    ]

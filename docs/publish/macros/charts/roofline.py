"""A machine's roofline: both roofs, the ridge point where they meet, and what was measured below them.

Both axes are logarithmic. The bytes and FLOPs of a place are its function's own, by the formulas of its case. So all of
its variants have one intensity: they stand on one stem, which ends at the place's name.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from html import escape
from pathlib import Path
from typing import Any

from docs.publish import evidence, markup, palette, units
from docs.publish.errors import PublishError, unknown
from docs.publish.evidence import Evidence, Quantity
from docs.publish.macros import numbers
from docs.publish.macros.calc import calc
from docs.publish.macros.charts import panels, vega
from docs.publish.macros.charts.height import Height
from docs.publish.macros.charts.vega import INK, LINE, SMALL, SOFT, Spec
from docs.publish.macros.gains import ALONE, typical
from docs.publish.place import Place, kernel_files, machine_page
from docs.publish.records.measured import MODES, PUBLISHED_MACHINE, Coordinates, Measured
from docs.publish.records.store import Store

DECADE = {"wide": 74, "narrow": 58}  # pixels of a factor of ten in the rate
HEAD = 44  # pixels above the level roof, for names
LINE_HEIGHT = 14  # pixels of a line of a name
Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Asked:
    """The arguments of {{ roofline(...) }}.

    Attributes:
        case, variant: whose line is traced below the roofs; the roofs are those of the same run.
        along: the dimension of its shape that makes the intensity.
        named: the places on the line that have a name.
        points: what else stands below the roofs, each a name, a case, its variants, a shape and, if needed, a mode.
        kernels: what each kernel is drawn with, at the shape that its page calls typical, forward.
        title: with placeholders, see `_title`.
        note: a sentence below, of the page's machine.
    """

    case: str
    variant: str
    along: str
    named: Sequence[int] = ()
    points: Sequence[Sequence[Any]] = ()
    kernels: Sequence[str] = ("eager", "ours")
    title: str = ""
    note: str = ""


@dataclass(frozen=True)
class Stem:
    """The variants of one place, fastest first."""

    name: str
    rows: list[Measured]

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.rows[0].row.flops / self.rows[0].row.moved

    @property
    def rates(self) -> list[float]:
        return [_rate(row) for row in self.rows]


@dataclass(frozen=True)
class Roofs:
    """Of one machine: bytes and FLOPs a second, and the FLOPs per byte at which the two are equal."""

    memory: Quantity
    matrix: Quantity
    ridge: Quantity
    dtype: str

    def at(self, intensity: float) -> float:
        """FLOPs a second that are attainable."""
        return min(intensity * self.memory.value, self.matrix.value)


@dataclass(frozen=True)
class Plot:
    """What is drawn for one machine."""

    roofs: Roofs
    line: list[Stem]
    stems: list[Stem]
    kernels: list[Stem]

    @property
    def every(self) -> list[Stem]:
        return [*self.line, *(stem for stem in self.stems if stem not in self.line)]

    @property
    def last(self) -> Measured:
        return self.line[-1].rows[0]


def render(spec: Mapping[str, Any], store: Store, shown: Evidence, place: Place, root: Path) -> str:
    """The roofline as HTML: a panel for each machine that measured the line.

    Raises:
        PublishError: the spec names nothing, or what was not measured on the published machine.
    """
    names = [field.name for field in fields(Asked)]
    for key in spec:
        if key not in names:
            raise unknown("roofline", key, names)
    asked = Asked(**spec)
    machines = sorted(store.machines, key=lambda slug: slug != PUBLISHED_MACHINE)
    plots = {slug: _plot(asked, store, place, root, slug) for slug in machines}
    drawn = [_panel(asked, plot, shown, place) for plot in plots.values() if plot]
    if not drawn:
        raise PublishError(f"roofline: expected rows of {asked.variant!r} in {asked.case}, got none")
    return markup.panels(drawn)


def _plot(asked: Asked, store: Store, place: Place, root: Path, machine: str) -> Plot | None:
    """What there is to draw of a machine; None where the line was not measured."""
    traced = [row for row in store.select(Coordinates(asked.case, asked.variant, machine=machine)) if row.row.flops]
    rows = sorted((row for row in traced if asked.along in row.row.shape), key=lambda row: row.row.shape[asked.along])
    if not rows:
        return None
    line = [Stem(_of_line(asked, row, first=row is rows[0]), [row]) for row in rows]
    ends = [line[0], line[-1]]
    named = [stem for stem in line if stem.rows[0].row.shape[asked.along] in asked.named] or ends
    where = Coordinates(asked.case, machine=machine)
    memory = numbers.ceiling(store, place, "copy", at=where)
    matrix = numbers.ceiling(store, place, rows[0].dtype, rows[0].row.regime, where)
    ridge = calc(place, "matrix / memory", "FLOP/byte", {"matrix": matrix, "memory": memory})
    stems = [stem for point in asked.points if (stem := _stem(store, machine, *point))]
    kernels = _kernels(asked, store, root, machine)
    roofs = Roofs(memory, matrix, ridge, rows[0].dtype)
    return Plot(roofs, line, [*named, *stems, *kernels], kernels)


def _of_line(asked: Asked, row: Measured, first: bool) -> str:
    """A place on the line; the first one says what the line is."""
    size = row.row.shape[asked.along]
    place = f"{size} {asked.along.removesuffix('s') if size == 1 else asked.along}"
    return f"{palette.label(row.variant, case=row.case)}, {place}" if first else place


def _stem(
    store: Store, machine: str, name: str, case: str, variants: Sequence[str], shape: str, mode: str = ALONE
) -> Stem | None:
    """A place's variants on a machine; None where it was not measured there.

    Raises:
        PublishError: on the published machine one of them was not measured.
    """
    at = Coordinates(case, direction="forward", shape=shape, mode=mode, machine=machine)
    found = {row.variant: row for row in store.select(at) if row.row.flops and row.row.moved and not row.busy}
    for variant in variants if machine == PUBLISHED_MACHINE else ():
        if variant not in found:
            raise unknown(f"roofline: {name}: variant with bytes and FLOPs at {shape}, {mode}", variant, found)
    rows = [found[variant] for variant in variants if variant in found]
    return Stem(name, sorted(rows, key=_rate, reverse=True)) if rows else None


def _kernels(asked: Asked, store: Store, root: Path, machine: str) -> list[Stem]:
    """Each kernel that was measured, at the shape that its page calls typical."""
    stems = []
    for name in kernel_files(root) if asked.kernels else ():
        case = f"kernels/{name.replace('_', '-')}"
        if store.select(Coordinates(case, "ours", machine=machine, mode=ALONE)):
            title, shape = typical(root, case)
            stems.append(_stem(store, machine, title, case, asked.kernels, shape))
    return [stem for stem in stems if stem]


def _rate(row: Measured) -> float:
    return row.row.flops / row.time.p50


# ---- words ----------------------------------------------------------------------------------------------------------


def _panel(asked: Asked, plot: Plot, shown: Evidence, place: Place) -> str:
    row, home = plot.last, plot.last.machine == PUBLISHED_MACHINE
    stale = dict.fromkeys(stem.name for stem in plot.every for row in stem.rows if row.stale)
    title = _title(asked, plot) if home else f"{row.record.machine['name']}: {_ridge(plot)}"
    points = "; ".join(f"{stem.name} {', '.join(map(_said, stem.rows))}" for stem in plot.every)
    spoken = f"{title}. {_ridge(plot)}. {points}"
    drawn = "".join(panels.drawing(spec(plot, size), size, spoken) for size in panels.SIZES)
    machine = markup.link(row.record.machine["name"], place.to(machine_page(row.machine)))
    days = evidence.days(each.record for stem in plot.every for each in stem.rows)
    badge = f' <span class="rp-badge">stale</span> {escape(", ".join(stale))}: changed since.' if stale else ""
    return markup.panel(
        title=title,
        what=f"Rate over arithmetic intensity, both axes logarithmic. {_timed(plot)}",
        body=_key(plot) + drawn,
        source=f"{machine}, {days}.{f' {escape(asked.note)}' if home and asked.note else ''}{badge}",
        details=f"<details><summary>The numbers</summary>{_table(plot, shown, place)}</details>",
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
    return f"{palette.label(row.variant, case=row.case)} {units.text(_rate(row), 'FLOP/s')}"


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


def _table(plot: Plot, shown: Evidence, place: Place) -> str:
    """The roofs and the points, each number with its evidence."""
    roofs = [("the memory's roof", plot.roofs.memory), ("the matrix units' roof", plot.roofs.matrix)]
    lines = [("", [escape(name), markup.NONE, markup.NONE, shown.show(roof)]) for name, roof in roofs]
    lines.append(("", ["the ridge point", markup.NONE, shown.show(plot.roofs.ridge), markup.NONE]))
    for stem in plot.every:
        for row in stem.rows:
            rate = evidence.of_row(row, "rate", None, place)
            assert rate is not None  # it has FLOPs
            label = escape(palette.label(row.variant, case=row.case))
            lines.append(("", [escape(stem.name), label, shown.show(_intensity(row, place)), shown.show(rate)]))
    return markup.table(("place", "variant", "FLOP per byte", "rate"), lines)


def _intensity(row: Measured, place: Place) -> Quantity:
    """FLOP per byte, from the numbers that the case's formulas gave at this shape."""
    inputs = {"flops": row.row.flops, "bytes_read": row.row.bytes_read, "bytes_written": row.row.bytes_written}
    found = calc(place, "flops / (bytes_read + bytes_written)", "FLOP/byte", inputs)
    source = {"source_url": place.source(row.row.sources.files[-1], row.record.commit)}
    href = place.to(machine_page(row.machine, row.anchor, row.case))
    return Quantity(found.value, found.unit, found.entry | evidence.of_run(row.record) | source, href, row.stale)


# ---- the drawing ----------------------------------------------------------------------------------------------------


def spec(plot: Plot, size: str) -> Spec:
    """The drawing in one of its sizes."""
    narrow, decade = size == "narrow", DECADE[size]
    scale, unit = units.NAMED[plot.roofs.matrix.text.split()[-1]][0], plot.roofs.matrix.text.split()[-1]
    left, right, bottom = 42, 10, 44
    width = panels.SIZES[size] - left - right
    across = Across.of([stem.intensity for stem in plot.every], width)
    top = plot.roofs.matrix.value * 10 ** (HEAD / decade)
    above = Height(top / 10, top, True, decade)  # a decade of it: it ends where the lowest name does

    written = [stem.name.replace(", ", ",\n") if narrow else stem.name for stem in plot.stems]
    names = flags(plot, written, across, above.pixel)
    lowest = max(end + LINE_HEIGHT * (1 + name.count("\n")) for end, name in zip(names, written, strict=True))
    floor = top / 10 ** (lowest / decade)
    height = Height(floor, top, True, math.ceil(lowest))
    x_scale = {"type": "log", "base": 2, "domain": [across.low, across.high], "nice": False}
    y_scale = {"type": "log", "base": 10, "domain": [floor / scale, top / scale], "nice": False, "zero": False}
    steps = [4.0**power for power in range(-4, 12)][:: 2 if narrow else 1]
    x_axis = vega.axis(
        values=[step for step in steps if across.low <= step <= across.high],
        labelExpr="datum.value < 1 ? '1/' + 1 / datum.value : datum.value",
        ticks=True,
        tickColor=LINE,
    )
    ticks = [tick / scale for tick in height.ticks()]
    y_axis = vega.axis(grid=True, gridColor=LINE, gridWidth=0.6, values=ticks, domain=False, labelExpr="datum.value")

    def x(field: str = "x") -> Spec:
        return vega.number(field, scale=x_scale, axis=x_axis)

    def y(field: str = "y") -> Spec:
        return vega.number(field, scale=y_scale, axis=y_axis)

    def points(stems: Sequence[Stem]) -> list[Spec]:
        return [
            {
                "x": stem.intensity,
                "y": _rate(row) / scale,
                "place": stem.name,
                "label": palette.label(row.variant, case=row.case),
                "colour": palette.colour(row.variant),
                "intensity": units.text(stem.intensity, "FLOP/byte"),
                "rate": units.text(_rate(row), "FLOP/s"),
            }
            for stem in stems
            for row in reversed(stem.rows)
        ]

    roofs = plot.roofs
    ridge = {"x": roofs.ridge.value, "y": roofs.matrix.value / scale}
    outline = [{"x": at, "y": roofs.at(at) / scale} for at in (across.low, roofs.ridge.value, across.high)]
    stems = [
        {"x": stem.intensity, "y": stem.rates[0] / scale, "end": height.value(end) / scale, "text": name}
        for stem, end, name in zip(plot.stems, names, written, strict=True)
    ]
    leftwards = [stem for stem in stems if stem["x"] > roofs.ridge.value]
    rightwards = [stem for stem in stems if stem["x"] <= roofs.ridge.value]
    shown = {"place": "what", "label": "variant", "intensity": "intensity", "rate": "rate"}
    tooltip = [vega.name(field, title=title) for field, title in shown.items()]
    small = {"fontSize": SMALL, "color": SOFT}
    flag = small | {"lineBreak": "\n", "lineHeight": LINE_HEIGHT}
    dot = {"x": x(), "y": y(), "color": vega.colour(), "tooltip": tooltip}
    halo = {"stroke": vega.PAPER, "strokeWidth": 1.2, "filled": True, "opacity": 1}
    text = vega.name("text")
    layers = [
        vega.layer("rule", {"x": x(), "y": y(), "y2": {"field": "end"}}, stems, color=LINE, strokeWidth=1.2),
        vega.layer("line", {"x": x(), "y": y()}, outline, color=INK, strokeWidth=2.2, strokeJoin="round"),
        vega.layer("line", {"x": x(), "y": y()}, points(plot.line), color=SOFT, strokeWidth=1),
        vega.layer("point", dot, points(plot.line), size=26, **halo),
        vega.layer("point", dot, points([stem for stem in plot.stems if stem not in plot.line]), size=62, **halo),
        vega.layer(
            "point", {"x": x(), "y": y()}, [ridge], fill=vega.PAPER, stroke=vega.ACCENT, strokeWidth=2.6, opacity=1, size=110
        ),
        vega.layer("text", {"x": x(), "y": y("end"), "text": text}, rightwards, align="left", dx=4, **flag),
        vega.layer("text", {"x": x(), "y": y("end"), "text": text}, leftwards, align="right", dx=-4, **flag),
        *_names(plot, across, x, y, narrow, decade, scale),
        vega.layer(
            "text",
            {"x": vega.pixel(0), "y": vega.pixel(0), "text": text},
            [{"text": unit}],
            align="left",
            dx=2 - left,
            dy=-8,
            **small,
        ),
        vega.layer(
            "text",
            {"x": vega.pixel(width), "y": vega.pixel(height.pixels), "text": text},
            [{"text": "FLOP per byte"}],
            align="right",
            dy=36,
            **small,
        ),
    ]
    padding = {"left": left, "right": right, "top": 16, "bottom": bottom}
    return vega.chart([each for each in layers if each], [], width, height.pixels, padding)


def _names(plot: Plot, across: "Across", x: Any, y: Any, narrow: bool, decade: float, scale: float) -> list[Spec]:
    """The roofs' names along them, and the ridge point's beside it."""
    roofs, text = plot.roofs, vega.name("text")
    corner = {"x": roofs.ridge.value, "y": roofs.matrix.value / scale}
    at = math.sqrt(roofs.ridge.value * max(across.low, roofs.ridge.value / 32))
    sloped = {"x": at, "y": roofs.at(at) / scale, "text": f"{'' if narrow else 'memory: '}{roofs.memory.text}"}
    level = corner | {"text": f"{'' if narrow else f'arithmetic, {roofs.dtype}: '}{roofs.matrix.text}"}
    steep = math.atan(decade / (across.pixels / math.log10(across.high / across.low)))
    angle = 360 - math.degrees(steep)
    small = {"fontSize": SMALL, "color": SOFT}
    place = {"x": x(), "y": y(), "text": text}
    return [
        vega.layer("text", place, [sloped], align="center", angle=angle, dy=-9, **small),
        vega.layer("text", place, [level], align="left", dx=12, dy=-10, **small),
        vega.layer(
            "text",
            place,
            [corner | {"text": "ridge point"}],
            align="right",
            dx=-10,
            dy=-24,
            fontSize=vega.TEXT,
            fontWeight=600,
            color=INK,
        ),
        vega.layer("text", place, [corner | {"text": roofs.ridge.text}], align="right", dx=-10, dy=-8, **small),
    ]


@dataclass(frozen=True)
class Across:
    """The horizontal scale: powers of two around all intensities."""

    low: float
    high: float
    pixels: int

    @classmethod
    def of(cls, intensities: Sequence[float], pixels: int) -> "Across":
        low, high = min(intensities), max(intensities)
        return cls(2.0 ** math.floor(math.log2(low) - 0.5), 2.0 ** math.ceil(math.log2(high) + 0.2), pixels)

    def pixel(self, intensity: float) -> float:
        """From the left."""
        return self.pixels * math.log(intensity / self.low) / math.log(self.high / self.low)


def flags(plot: Plot, written: Sequence[str], across: Across, down: Callable[[float], float]) -> list[float]:
    """Where each stem ends, in pixels from the top: below its points, where its name, as it is written, lies on nothing.

    Left of the ridge point names stand to the right of their stems, else to the left. So from the ridge point outwards
    each takes the first free place, and no longer stem stands between a shorter one and its name.
    """
    taken = [_around(across.pixel(stem.intensity), down(rate)) for stem in plot.every for rate in stem.rates]
    ridge, matrix = plot.roofs.ridge.value, plot.roofs.matrix.value
    for step in range(0, across.pixels, 4):
        intensity = across.low * (across.high / across.low) ** (step / across.pixels)
        taken.append(_around(step, down(plot.roofs.at(intensity)), 2))
    for one, next_ in zip(plot.line, plot.line[1:], strict=False):
        pixels = [(across.pixel(stem.intensity), down(stem.rates[0])) for stem in (one, next_)]
        taken += [_around(*(a + (b - a) * part / 8 for a, b in zip(*pixels, strict=True)), 1) for part in range(8)]
    corner = across.pixel(ridge), down(matrix)
    taken.append((corner[0] - 90, corner[1] - 34, corner[0] + across.pixels, corner[1]))
    ends: dict[int, float] = {}
    order = sorted(range(len(written)), key=lambda at: abs(math.log(plot.stems[at].intensity / ridge)))
    for index in sorted(order, key=lambda at: plot.stems[at].intensity > ridge):
        stem, lines = plot.stems[index], written[index].split("\n")
        at, lowest = across.pixel(stem.intensity), down(stem.rates[-1])
        long = vega.room(lines) * SMALL / vega.TEXT + 8
        left, end, high = (at if stem.intensity <= ridge else at - long), lowest + 12, LINE_HEIGHT * (len(lines) - 1)
        while any(_meet((left, end - 7, left + long, end + high + 7), other) for other in taken):
            end += 1
        taken += [(left, end - 7, left + long, end + high + 7), (at - 1, lowest, at + 1, end)]
        ends[index] = end
    return [ends[index] for index in range(len(written))]


def _around(x: float, y: float, reach: float = 4) -> Box:
    return x - reach, y - reach, x + reach, y + reach


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]

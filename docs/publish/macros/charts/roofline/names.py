"""Where the names of a roofline's places stand, so that they lie on nothing."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from docs.publish.macros.charts import vega
from docs.publish.macros.charts.roofline.plot import Plot

LINE_HEIGHT = 14  # pixels of a line of a name
Box = tuple[float, float, float, float]  # left, top, right, bottom


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

    def intensity(self, pixel: float) -> float:
        return self.low * (self.high / self.low) ** (pixel / self.pixels)


def ends(plot: Plot, written: Sequence[str], across: Across, down: Callable[[float], float]) -> list[float]:
    """Where each stem ends, in pixels from the top: below its points, where its name, as written, lies on nothing.

    Left of the ridge point names stand to the right of their stems, else to the left. So from the ridge point outwards
    each takes the first free place, and no longer stem stands between a shorter one and its name.

    Args:
        down: pixels from the top, of a rate.
    """
    taken, found = _drawn(plot, across, down), {}
    ridge = plot.roofs.ridge.value
    order = sorted(range(len(written)), key=lambda at: abs(math.log(plot.stems[at].intensity / ridge)))
    for index in sorted(order, key=lambda at: plot.stems[at].intensity > ridge):
        stem, lines = plot.stems[index], written[index].split("\n")
        x, end = across.pixel(stem.intensity), down(stem.rates[-1]) + 12
        long, more = vega.room(lines) * vega.SMALL / vega.TEXT + 8, LINE_HEIGHT * (len(lines) - 1)
        left = x if stem.intensity <= ridge else x - long
        while any(_meet((left, end - 7, left + long, end + more + 7), other) for other in taken):
            end += 1
        taken += [(left, end - 7, left + long, end + more + 7), (x - 1, down(stem.rates[-1]), x + 1, end)]
        found[index] = end
    return [found[index] for index in range(len(written))]


def _drawn(plot: Plot, across: Across, down: Callable[[float], float]) -> list[Box]:
    """What is drawn whatever the names are: points, roofs, the line, and the words at the ridge point."""
    points = [(across.pixel(stem.intensity), down(rate)) for stem in plot.every for rate in stem.rates]
    boxes = [_around(point, 4) for point in points]
    roofs = ((float(pixel), down(plot.roofs.at(across.intensity(pixel)))) for pixel in range(0, across.pixels, 4))
    boxes += [_around(point, 2) for point in roofs]
    for one, other in pairwise((across.pixel(stem.intensity), down(stem.rates[0])) for stem in plot.line):
        between = ([a + (b - a) * part / 8 for a, b in zip(one, other, strict=True)] for part in range(8))
        boxes += [_around((x, y), 1) for x, y in between]
    x, y = across.pixel(plot.roofs.ridge.value), down(plot.roofs.matrix.value)
    return [*boxes, (x - 90, y - 34, x + across.pixels, y)]


def _around(point: tuple[float, float], reach: float) -> Box:
    x, y = point
    return x - reach, y - reach, x + reach, y + reach


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]

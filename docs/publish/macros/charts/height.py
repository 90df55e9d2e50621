"""The vertical scale of a plot of curves: from values to pixels, its ticks, and labels that do not overlap."""

import math
from dataclasses import dataclass

from docs.publish.macros.charts.marks import Plot


@dataclass(frozen=True)
class Height:
    """The scale, in the plot's unit: from zero or the plot's start, or logarithmic where the values need it."""

    bottom: float
    top: float
    logarithmic: bool
    pixels: int

    @classmethod
    def of(cls, plot: Plot, pixels: int) -> "Height":
        values = [value / plot.scale for mark in plot.marks for value in (mark.low, mark.high)]
        values += [plot.ceiling[0] / plot.scale] if plot.ceiling else []
        low, high = min(values), max(values)
        if plot.measure.lower_is_better and high > 30 * low > 0:
            return cls(low / 1.3, high * 1.3, True, pixels)
        start = plot.start / plot.scale
        return cls(start, start + (high - start) * 1.06 or 1, False, pixels)

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
        long = self.top - self.bottom
        step = 10 ** math.floor(math.log10(long / 4))
        step *= max(factor for factor in (1, 2, 5, 10) if factor * step <= long / 3 or factor == 1)
        first = math.ceil(round(self.bottom / step, 6))
        return [round(index * step, 9) for index in range(first, math.floor(self.top / step) + 1)]


def apart(pixels: list[float], gap: float, height: float, top: float = 0.0) -> list[float]:
    """Positions, ascending, a gap apart or more, between top and height, moved as little as a few sweeps need."""
    places = list(pixels)
    for _ in range(50):
        for index in range(len(places) - 1):
            lacking = gap - (places[index + 1] - places[index])
            if lacking > 0:
                places[index] -= lacking / 2
                places[index + 1] += lacking / 2
        places = [min(max(place, top), height) for place in places]
    return places

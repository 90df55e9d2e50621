"""Quantities as text: three significant digits and a unit that fits."""

import functools
import math
from collections.abc import Callable

STEPS: dict[str, tuple[tuple[float, str], ...]] = {
    "s": ((1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1.0, "s")),
    "B": ((1.0, "B"), (1e3, "KB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB")),
    "B/s": ((1e6, "MB/s"), (1e9, "GB/s"), (1e12, "TB/s")),
    "FLOP": ((1.0, "FLOP"), (1e6, "MFLOP"), (1e9, "GFLOP"), (1e12, "TFLOP")),
    "FLOP/s": ((1e9, "GFLOP/s"), (1e12, "TFLOP/s")),
}
FIXED = {"%": (1e-2, "%"), "x": (1.0, "×"), "": (1.0, ""), "FLOP/byte": (1.0, "FLOP/byte"), "W": (1.0, "W")}
NAMED: dict[str, tuple[float, str]] = (
    {name: (scale, name) for steps in STEPS.values() for scale, name in steps} | {"us": (1e-6, "µs")} | FIXED
)


@functools.lru_cache(None, typed=True)
def text(value: float, unit: str, exact: bool = False) -> str:
    """A value in base units (seconds, bytes, FLOP, a fraction for "%") as text: text(4.05e12, "B/s") is "4.05 TB/s".

    Args:
        value: what to show.
        unit: a family ("s", "B", "B/s", "FLOP", "FLOP/s"), whose largest unit that fits is taken, or a unit of `FIXED`.
        exact: leave out digits after the point that are zero, as for a figure that is not measured.
    """
    if unit in FIXED:
        return in_unit(value, unit, exact or (unit == "" and float(value).is_integer()))
    return in_unit(value, fitting(value, unit), exact)


def in_unit(value: float, unit: str, exact: bool = False) -> str:
    """A value in base units as text in one unit of `NAMED`: in_unit(3e-5, "us") is "30.0 µs"."""
    scale, name = NAMED[unit]
    return _named(digits(value / scale, exact), name)


def between(low: float, high: float, unit: str) -> str:
    """A range in one unit, its ends rounded outwards: between(35.4e-6, 60.7e-6, "s") is "35 to 61 µs".

    Two digits, and a third where the first is a one or the range is narrow: so no end is moved by more than a tenth.
    """
    return ends(low, high, unit if unit in FIXED else fitting(low, unit))


def ends(low: float, high: float, unit: str) -> str:
    """A range in one unit of `NAMED`, as `between` has it."""
    scale, name = NAMED[unit]
    narrow = high < 1.2 * low
    decimals = max(_decimals(low / scale, narrow), _decimals(high / scale, narrow))
    both = _outwards(low / scale, decimals, math.floor), _outwards(high / scale, decimals, math.ceil)
    return _named(" to ".join(dict.fromkeys(both)), name)


def _decimals(value: float, narrow: bool) -> int:
    """How many digits after the point, or before it if negative, an end of a range is rounded to."""
    if value == 0:
        return 0
    power = math.floor(math.log10(abs(value)))
    return (3 if narrow or value < 2 * 10**power else 2) - 1 - power


def _outwards(value: float, decimals: int, rounding: Callable[[float], int]) -> str:
    exact = round(value * 10.0**decimals, 6)  # 35.0 may come as 35.000000000000001
    return f"{rounding(exact) / 10.0**decimals:,.{max(0, decimals)}f}"


def fitting(value: float, family: str) -> str:
    """The largest unit of a family in which a value is at least one."""
    large = (name for scale, name in reversed(STEPS[family]) if rounded(abs(value) / scale) >= 1)
    return next(large, STEPS[family][0][1])


def _named(number: str, unit: str) -> str:
    return number + unit if unit in ("%", "×", "") else f"{number} {unit}"


def digits(value: float, exact: bool = False) -> str:
    """Three significant digits, thousands separated; whole numbers whole, the very small with an exponent."""
    if value == 0 or (float(value).is_integer() and (exact or isinstance(value, int))):
        return f"{value:,.0f}"
    if abs(value) < 1e-3:
        return f"{value:.2e}".replace("e-0", "e-")
    value = rounded(value)
    shown = f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"
    return shown.rstrip("0").rstrip(".") if exact and "." in shown else shown


def rounded(value: float) -> float:
    """To three significant digits."""
    return 0.0 if value == 0 else round(value, 2 - math.floor(math.log10(abs(value))))


def size(shape: str, times: str = " × ") -> str:
    """A shape as readers see it: "layer_norm 32768x4096" becomes "layer norm 32768 × 4096"."""
    part, _, sizes = shape.rpartition(" ")
    return f"{part.replace('_', ' ')} {sizes.replace('x', times)}".lstrip()


def numbers(shape: str) -> list[int]:
    """The sizes of a shape as macros take it."""
    return [int(number) for number in shape.rpartition(" ")[2].split("x")]

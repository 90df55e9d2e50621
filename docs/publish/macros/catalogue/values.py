"""Numbers: each is printed as text with its evidence, or computed with."""

from typing import Any

from docs.publish.macros import bounds, numbers
from docs.publish.macros import captures as capture_blocks
from docs.publish.macros.calc import Input, calc
from docs.publish.macros.catalogue.shared import Shared
from docs.publish.macros.shown import Shown, plain
from docs.publish.records.measured import Coordinates


class Values(Shared):
    """Measured, stated by a vendor, printed by a script, or worked out."""

    def gpu(self, variant: str, at: str, case: str = "", clock: str = "gpu") -> Shown:
        """GPU time of a variant at a named point of the page's case: gpu("compile", "decode")."""
        return self._measured("time", variant, at, case, clock)

    def wall(self, variant: str, at: str, case: str = "") -> Shown:
        """Wall clock of a call: wall("compile", "decode")."""
        return self._measured("time", variant, at, case, "wall")

    def gain(self, variant: str, over: str, at: str, case: str = "", clock: str = "") -> Shown:
        """By how much a variant is faster than another: gain("reduce-overhead", over="compile", at="decode")."""
        return self._measured("speedup", variant, at, case, clock, over)

    def memory(self, variant: str, at: str, case: str = "", clock: str = "") -> Shown:
        """Peak memory of a call."""
        return self._measured("memory", variant, at, case, clock)

    def launches(self, variant: str, at: str, case: str = "", clock: str = "") -> Shown:
        """How many kernels a call launches."""
        return self._measured("kernels", variant, at, case, clock)

    def share(self, variant: str, at: str, case: str = "", clock: str = "") -> Shown:
        """Bandwidth as a share of the ceiling that was measured in the same run."""
        return self._measured("share", variant, at, case, clock)

    def bandwidth(self, variant: str, at: str, case: str = "", clock: str = "") -> Shown:
        """Bytes that have to be moved, per second."""
        return self._measured("bandwidth", variant, at, case, clock)

    def rate(self, variant: str, at: str, case: str = "", clock: str = "") -> Shown:
        """Floating-point operations per second."""
        return self._measured("rate", variant, at, case, clock)

    def peak(self, variant: str, at: str, case: str = "", clock: str = "") -> Shown:
        """The rate as a share of the peak of matmuls that was measured in the same run."""
        return self._measured("rate_share", variant, at, case, clock)

    def error(self, variant: str, at: str, case: str = "", clock: str = "") -> Shown:
        """The largest difference from float64."""
        return self._measured("error", variant, at, case, clock)

    def build(self, variant: str, at: str, case: str = "", clock: str = "") -> Shown:
        """Seconds to build a variant with empty caches."""
        return self._measured("build", variant, at, case, clock)

    def number(self, case: str, variant: str, metric: str, over: str | None = None, **where: Any) -> Shown:
        """Any metric of METRICS at a point that has no name: number("kernels/rope", "ours", "registers", shape=...)."""
        place = self._page.place
        return self._shown(numbers.measured(self._store, place, Coordinates(case, variant, **where), metric, over))

    def ceiling(self, name: str, mode: str | None = None, **where: str) -> Shown:
        """A measured ceiling: ceiling("copy"), ceiling("bfloat16", "burst")."""
        return self._shown(numbers.ceiling(self._store, self._page.place, name, mode, Coordinates(**where)))

    def datasheet(self, device: str, figure: str) -> Shown:
        """What the vendor states: datasheet("NVIDIA H200", "bandwidth")."""
        return self._shown(numbers.datasheet(device, figure))

    def machine(self, fact: str, **where: str) -> Shown:
        """What a machine's driver reports: machine("memory")."""
        return self._shown(numbers.machine(self._store, self._page.place, fact, Coordinates(**where)))

    def captured(self, section: str, *line: str, which: int = 1, of: str = "", on: str = "") -> Shown:
        """A number of a section that a script printed: captured("table", "decode", "max-autotune", which=4)."""
        capture = self._printed(section, of, on)
        return self._shown(capture_blocks.number(self._captures, capture, self._page.place, list(line), which))

    def bound(self, name: str, /, case: str = "", **given: Any) -> Shown | str:
        """What a named formula beside the case gives, see tests/benchmarks/bounds.py: bound("copied")."""
        page, case = self._page, case or self._page.case
        there = type(self)(self._store, self._captures, page.of(case), self._root)._macros()
        found = bounds.show(name, bounds.find(self._root, case, name), page.place, given, there)
        return found if isinstance(found, str) else self._shown(found)

    def calc(self, expression: str, unit: str, **inputs: Input | Shown) -> Shown:
        """Worked arithmetic: calc("2 * rows * width / copy", unit="us", rows=8, width=2, copy=ceiling("copy"))."""
        given = {name: plain(value) for name, value in inputs.items()}
        return self._shown(calc(self._page.place, expression, unit, given))

    def counted(self, name: str, at: str, function: str, fact: str) -> Shown:
        """A counted fact of a compiled kernel, to compute with."""
        from docs.publish.compiled.references import counted

        return self._shown(counted(self._captures, name, at, function, fact))

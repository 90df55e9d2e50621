"""Numbers: each is printed as text with its evidence, or computed with."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from docs.publish.evidence import Shown
from docs.publish.macros import bounds, numbers, points
from docs.publish.macros import captures as capture_blocks
from docs.publish.macros.catalogue.shared import Shared
from docs.publish.records.measured import Coordinates


def of_a_row(name: str, metric: str = "", clock: str = "") -> Callable[..., Shown]:
    """The macro of that name. It shows a metric, the one of its name if none is given, by a clock of its own."""

    def macro(
        self: Shared, variant: str, at: str, case: str = "", clock: str = clock, machine: str = "", over: str = ""
    ) -> Shown:
        where = points.at(self._root, case or self._page.case, at, clock)
        where = replace(where, variant=variant, machine=machine or None)
        return self._shown(numbers.measured(self._store, self._page.place, where, metric or name, over or None))

    macro.__qualname__ = name  # as errors call it
    return macro


class Values(Shared):
    """Measured, stated by a vendor, printed by a script, or worked out.

    Of a row, by variant and point: gpu("compile", "decode"). It is of the page's case, by the point's main clock and on
    the published machine, unless case=, clock= and machine= say otherwise.
    """

    gpu = of_a_row("gpu", "time", "gpu")  # GPU time
    wall = of_a_row("wall", "time", "wall")  # wall clock of a call
    gain = of_a_row("gain", "speedup")  # how many times as fast as another: gain("graph", over="eager", at="decode")
    memory = of_a_row("memory")  # peak memory of a call
    launches = of_a_row("launches", "kernels")  # how many kernels a call launches
    share = of_a_row("share")  # bandwidth as a share of the ceiling that was measured in the same run
    bandwidth = of_a_row("bandwidth")  # bytes that have to be moved, per second
    rate = of_a_row("rate")  # floating-point operations per second
    peak = of_a_row(
        "peak", "rate_share"
    )  # the rate as a share of the peak of matmuls that was measured in the same run
    error = of_a_row("error")  # the largest difference from float64
    build = of_a_row("build")  # seconds to build with empty caches
    registers = of_a_row("registers")  # of a thread, in the kernel that takes most

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

    def counted(self, name: str, at: str, function: str, fact: str) -> Shown:
        """A counted fact of a compiled kernel, to compute with."""
        from docs.publish.compiled.references import counted

        return self._shown(counted(self._captures, name, at, function, fact))

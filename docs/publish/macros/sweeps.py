"""What backs a launch table: what each machine's newest sweep tried at one point, as tables for a page."""

from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from docs.publish import evidence, markup, units
from docs.publish.errors import PublishError, unknown
from docs.publish.evidence import Evidence, Quantity
from docs.publish.records import sweeps
from docs.publish.records.schema import Sweep, SweepPoint, Tried
from tests.benchmarks.sweeps import chosen

BF16 = "bfloat16"


def table(root: Path, page: Evidence, kernel: str, direction: str, shape: str, dtype: str = BF16) -> str:
    """The table as HTML, fastest first; the row that the launch table takes is marked.

    Raises:
        PublishError: the point was not swept.
    """
    sweep, file = sweeps.newest(kernel, root)
    first = _point(sweep, direction, shape, dtype)
    taken = chosen(kernel, direction, first.asked["row_length"], first.asked["bits"])
    if not any(tried.options == taken for tried in first.tried):
        raise PublishError(f"sweep of {kernel}: expected {taken} among what was tried at {shape}, found it missing")
    drawn = [_panel(root, page, sweep, file, first, taken, shown=True)]
    for other, its in sweeps.elsewhere(kernel, root):
        if point := _find(other, direction, shape, dtype):
            drawn.append(_panel(root, page, other, its, point, taken, shown=False))
    return markup.panels(drawn, "table")


def _panel(
    root: Path, page: Evidence, sweep: Sweep, file: Path, point: SweepPoint, taken: dict[str, Any], shown: bool
) -> str:
    """What was tried on one machine."""
    source = page.place.source(file.relative_to(root).as_posix(), None)
    shared = {**evidence.of_run(sweep), "source_url": source, "stale": sweeps.changed(sweep, root)}
    names = list(dict.fromkeys(name for tried in point.tried for name in tried.options))
    rows = [_cells(sweep, shared, point, tried, names, tried.options == taken, page) for tried in point.tried]
    failed = "".join(f" Failed: {escape(_words(other.options))}: {escape(other.reason)}." for other in point.failed)
    machine = sweep.machine["slug"], str(sweep.machine["name"])
    what = f"{point.direction.capitalize()} of {units.size(point.size)}, {point.dtype}"
    return markup.panel(
        what=f"{what}: what was tried, fastest first",
        body=markup.table([*map(_heading, names), "time", "bandwidth", ""], (("", row) for row in rows), named=False),
        source=f"{escape(machine[1])}, {sweep.date[:10]}.{failed}",
        machine=machine,
        shown=shown,
    )


def points(root: Path, kernel: str, direction: str, shapes: Iterable[str]) -> tuple[Sweep, list[SweepPoint], str]:
    """The newest sweep of a kernel, some of its points, and what has changed since.

    Raises:
        PublishError: a point was not swept.
    """
    sweep, _ = sweeps.newest(kernel, root)
    return sweep, [_point(sweep, direction, shape, BF16) for shape in shapes], sweeps.changed(sweep, root)


def _point(sweep: Sweep, direction: str, shape: str, dtype: str) -> SweepPoint:
    if point := _find(sweep, direction, shape, dtype):
        return point
    swept = [f"{point.direction} {point.size} {point.dtype}" for point in sweep.points]
    raise unknown(f"point of the sweep of {sweep.kernel}", f"{direction} {shape} {dtype}", swept)


def _find(sweep: Sweep, direction: str, shape: str, dtype: str) -> SweepPoint | None:
    wanted = direction, shape, dtype
    return next((point for point in sweep.points if (point.direction, point.size, point.dtype) == wanted), None)


def _cells(
    sweep: Sweep, shared: dict[str, Any], point: SweepPoint, tried: Tried, names: list[str], taken: bool, page: Evidence
) -> list[str]:
    """The options of an alternative, its time and bandwidth, and whether the launch table takes it."""
    time = tried.time
    label = f"kernels/{sweep.kernel} {point.direction} {units.size(point.size)} {point.dtype}, {_words(tried.options)}"
    low, high = (units.text(end, "s") for end in (time.p20, time.p80))
    spread = f"{low} to {high} (p20 to p80 of {time.samples} samples)"
    numbers = []
    for name, value, unit in (("Time", time.p50, "s"), ("Bandwidth", point.bytes / time.p50, "B/s")):
        entry = {"label": f"{name}: {label}", "value": units.text(value, unit), "spread": spread, **shared}
        numbers.append(page.show(Quantity(value, unit, entry, shared["source_url"])))
    options = [escape(str(tried.options.get(name, ""))) for name in names]
    return [*options, *numbers, "in the launch table" if taken else ""]


def _heading(name: str) -> str:
    """An option's name as a column's: "num_warps" is "warps"."""
    return escape(name.removeprefix("num_").lower().replace("_", " "))


def _words(options: dict[str, Any]) -> str:
    return ", ".join(f"{_heading(name)} {value}" for name, value in options.items())

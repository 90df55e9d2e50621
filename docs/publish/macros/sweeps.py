"""What backs a launch table: the alternatives of the newest recorded sweep at one point, as a table for a page."""

from html import escape
from pathlib import Path
from typing import Any

from docs.publish import evidence, units
from docs.publish.errors import PublishError, unknown
from docs.publish.evidence import Evidence, Quantity
from docs.publish.place import Place
from docs.publish.records import sweeps
from docs.publish.records.schema import Sweep, SweepPoint, Tried
from tests.benchmarks.sweeps import chosen


def table(root: Path, place: Place, page: Evidence, kernel: str, direction: str, shape: str, dtype: str) -> str:
    """The table as HTML, fastest first; the row that the launch table takes is marked.

    Raises:
        PublishError: the point was not swept.
    """
    sweep, file = sweeps.newest(kernel, root)
    points = {(point.direction, point.size, point.dtype): point for point in sweep.points}
    if (direction, shape, dtype) not in points:
        known = [" ".join(key) for key in points]
        raise unknown(f"point of the sweep of {kernel}", f"{direction} {shape} {dtype}", known)
    point = points[direction, shape, dtype]
    taken = chosen(kernel, direction, point.asked["row_length"], point.asked["bits"])
    if not any(tried.options == taken for tried in point.tried):
        raise PublishError(f"sweep of {kernel}: expected {taken} among what was tried at {shape}, found it missing")
    names = list(dict.fromkeys(name for tried in point.tried for name in tried.options))
    heads = "".join(f'<th scope="col">{escape(_heading(name))}</th>' for name in (*names, "time", "bandwidth", ""))
    lines = "".join(
        _line(sweep, file, point, tried, names, tried.options == taken, place, page, root) for tried in point.tried
    )
    what = f"{direction.capitalize()} of {units.size(shape)}, {dtype}: what was tried, fastest first"
    source = f"{escape(str(sweep.machine['name']))}, {sweep.date[:10]}"
    failed = "".join(f" Failed: {escape(_said(one.options))}: {escape(one.reason)}." for one in point.failed)
    return (
        '<section class="rp-chart rp-chart--table" data-search-exclude><figure class="rp-chart__panel rp-shown">'
        f'<figcaption><div class="rp-chart__what">{what}</div></figcaption>'
        '<div class="rp-scroll"><table class="rp-table">'
        f"<thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>"
        f'<p class="rp-chart__source">{source}.{failed}</p></figure></section>'
    )


def _line(
    sweep: Sweep, file: Path, point: SweepPoint, tried: Tried, names: list[str], taken: bool,
    place: Place, page: Evidence, root: Path,
) -> str:  # fmt: skip
    cells = "".join(f"<td>{escape(str(tried.options.get(name, '')))}</td>" for name in names)
    seconds = tried.time.p50
    label = f"kernels/{sweep.kernel} {point.direction} {units.size(point.size)} {point.dtype}, {_said(tried.options)}"
    low, high = (units.text(end, "s") for end in (tried.time.p20, tried.time.p80))
    shared: dict[str, Any] = {
        "spread": f"{low} to {high} (p20 to p80 of {tried.time.samples} samples of its time)",
        **evidence.of_run(sweep),
        "source_url": place.source(file.relative_to(root).as_posix(), None),
    }
    numbers = "".join(
        f"<td>{page.show(_quantity(value, unit, f'{name}: {label}', shared))}</td>"
        for name, value, unit in (("Time", seconds, "s"), ("Bandwidth", point.bytes / seconds, "B/s"))
    )
    return f"<tr>{cells}{numbers}<td>{'in the table' if taken else ''}</td></tr>"


def _quantity(value: float, unit: str, label: str, shared: dict[str, Any]) -> Quantity:
    entry = {"label": label, "value": units.text(value, unit), **shared}
    return Quantity(value, unit, entry, shared["source_url"])


def _heading(name: str) -> str:
    """An option's name as a column's: "num_warps" is "warps"."""
    return name.removeprefix("num_").lower().replace("_", " ")


def _said(options: dict[str, Any]) -> str:
    return ", ".join(f"{_heading(name)} {value}" for name, value in options.items())

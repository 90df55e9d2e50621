"""Tables from records: one panel a machine, every cell with its evidence."""

import textwrap
from dataclasses import replace
from html import escape

from docs.publish import evidence, markup, palette, units
from docs.publish.errors import PublishError, unknown
from docs.publish.evidence import Evidence
from docs.publish.place import machine_page
from docs.publish.records.measured import DIRECTIONS, METRICS, MODES, Coordinates, Measured, Published
from docs.publish.records.store import Store

NOISE = 0.01  # two values this close to each other are level: both stand out as the best
NONE_ASKED = (
    "The peak is of what a call asks for. Where it is 0 B, a CUDA graph took its memory when it was captured, or the "
    "call works in place."
)
Column = tuple[Measured | None, str]  # a row and a metric: one cell
Compared = dict[tuple[str, str], dict[str, float]]  # by shape and metric, the values of its variants in one unit
Grid = tuple[list[str], list[tuple[str, list[Column]]]]  # the head, and each line's name and cells


def table(
    store: Store,
    page: Evidence,
    at: Coordinates,
    metrics: list[str],
    variants: list[str],
    shapes: list[str],
    over: str | None = None,
    title: str = "",
    narrow: bool = False,
    work: str = "",
) -> str:
    """A table as HTML, with a panel for each machine, the published one first.

    One metric at several shapes: a row for each shape, a column for each variant. Else: a row for each variant (and
    shape), a column for each metric.

    Args:
        at: the case, and as far as it is needed direction, dtype, mode and machine.
        variants, shapes: all if none is named.
        narrow: another one stands beside it, so variants have their short names.
        work: what was timed, in words, where that is more than the direction says.

    Raises:
        PublishError: nothing fits, or a choice is open.
    """
    for name in metrics:
        if name not in METRICS:
            raise unknown("metric", name, METRICS)
    if not metrics:
        raise PublishError(f"table: expected metric=..., one of {', '.join(METRICS)}")

    def cells_of(columns: list[Column], beside: Compared) -> list[str]:
        return [
            _marked((row, metric), page.cell(row, metric, over if metric == "speedup" else None), beside)
            for row, metric in columns
        ]

    def panel(rows: list[Measured], shown: bool) -> str:
        record = rows[0].record
        head, lines = _grid(rows, metrics, narrow)
        beside = _compared(lines, over)
        cells = (("", [escape(name), *cells_of(columns, beside)]) for name, columns in lines)
        machine = rows[0].machine, record.machine["name"]
        link = markup.link(machine[1], page.place.to(machine_page(machine[0])))
        return markup.panel(
            title=title,
            what=_what(rows[0], metrics, over, work),
            body=markup.table(map(escape, head), cells),
            source=f"{link}, {evidence.days(row.record for row in rows)}."
            f"{_none_asked(rows, metrics)}{_missing(store, rows, variants)}",
            machine=machine,
            shown=shown,
        )

    found = (_of_variants(rows, variants) for rows in _rows(store, at, shapes))
    return markup.panels([panel(rows, shown=not index) for index, rows in enumerate(found) if rows], "table")


def _marked(column: Column, shown: str, compared: Compared) -> str:
    """A cell's HTML, with what tells it from those beside it: the best, ours, a bar."""
    row, metric = column
    beside = compared.get((row.size, metric), {}) if row else {}
    if row is None or row.variant not in beside:
        return shown
    value = beside[row.variant]
    best = (min if METRICS[metric].lower_is_better else max)(beside.values())
    level = abs(value - best) <= NOISE * best
    classes = ["rp-cell", *["rp-cell--best"] * level, *["rp-cell--ours"] * (row.variant == "ours")]
    part = value / (max(beside.values()) or 1)
    return f'<span class="{" ".join(classes)}" style="--part: {part:.3f}">{shown}</span>'


def _compared(lines: list[tuple[str, list[Column]]], over: str | None) -> Compared:
    """What is a contest: times and what follows them, and memory; where a graph holds it already, a call takes none."""
    found: dict[tuple[str, str], dict[str, Published]] = {}
    for row, metric in (column for _, columns in lines for column in columns):
        contest = METRICS[metric].power or metric == "memory"
        published = row.published(metric, over if metric == "speedup" else None) if row and contest else None
        if row and published and (published.value or metric != "memory"):
            found.setdefault((row.size, metric), {})[row.variant] = published
    return {
        at: {name: each.value for name, each in known.items()}
        for at, known in found.items()
        if len(known) > 1 and len({each.unit for each in known.values()}) == 1
    }


def _rows(store: Store, at: Coordinates, shapes: list[str]) -> list[list[Measured]]:
    """The rows to show, machine by machine, the page's own first. A choice is settled among the shapes shown."""
    rows = _of_shapes(store.choose(at, "direction"), shapes)
    for name in ("dtype", "mode"):
        rows = store.settle(rows, name, getattr(at, name))
    found = [rows]
    wanted = replace(at, direction=rows[0].direction)
    for machine in store.machines if at.machine is None else ():
        if machine != rows[0].machine and (others := store.nearest(replace(wanted, machine=machine))):
            found.append([row for row in others if row.size in shapes] or others)
    return found


def _of_shapes(rows: list[Measured], shapes: list[str]) -> list[Measured]:
    known = dict.fromkeys(row.size for row in rows)
    for shape in shapes:
        if shape not in known:
            raise unknown(f"shape of {rows[0].case}", shape, known)
    return [row for row in rows if not shapes or row.size in shapes]


def _of_variants(rows: list[Measured], variants: list[str]) -> list[Measured]:
    """The rows of some variants, in their order; of all in the palette's order if none is named."""
    present = dict.fromkeys(row.variant for row in rows)
    order = {
        name: index for index, name in enumerate(variants or [name for name in palette.variants() if name in present])
    }
    for name in order:
        if name not in palette.variants():
            raise unknown("variant", name, present)
    return sorted((row for row in rows if row.variant in order), key=lambda row: order[row.variant])


def _grid(rows: list[Measured], metrics: list[str], narrow: bool) -> Grid:
    if len(metrics) == 1 and len({row.size for row in rows}) > 1:
        return _by_shape(rows, metrics[0], narrow)
    return _by_variant(rows, metrics)


def _by_shape(rows: list[Measured], metric: str, narrow: bool) -> Grid:
    """Shapes down, variants across."""
    variants = sorted(dict.fromkeys(row.variant for row in rows), key=lambda name: name != "ours")  # first on a phone
    sizes = sorted(dict.fromkeys(row.size for row in rows), key=units.numbers)[::-1]
    at = {(row.size, row.variant): row for row in rows}
    head = [" × ".join(rows[0].row.shape), *(palette.label(name, narrow, rows[0].case) for name in variants)]
    return head, [(units.size(size), [(at.get((size, name)), metric) for name in variants]) for size in sizes]


def _by_variant(rows: list[Measured], metrics: list[str]) -> Grid:
    """Variants down (with their shape, if there are several), metrics across."""
    several = len({row.size for row in rows}) > 1
    body: list[tuple[str, list[Column]]] = []
    for row in rows:
        name = palette.label(row.variant, case=row.case) + (f", {units.size(row.size)}" if several else "")
        body.append((name, [(row, metric) for metric in metrics]))
    return ["variant", *(METRICS[metric].label for metric in metrics)], body


def _what(row: Measured, metrics: list[str], over: str | None, work: str) -> str:
    """What the table shows, in a line."""
    against = f" over {palette.label(over, case=row.case)}" if over else ""
    labels = ", ".join(METRICS[metric].label + against * (metric == "speedup") for metric in metrics)
    timed = f", {MODES[row.mode]}" if any(METRICS[metric].power for metric in metrics) else ""
    timed += evidence.kind(row.published(metric, over if metric == "speedup" else None) for metric in metrics)
    work = work or DIRECTIONS[row.direction]
    return f"{labels[0].upper()}{labels[1:]}. {work[0].upper()}{work[1:]}, {row.dtype}{timed}"


def _none_asked(rows: list[Measured], metrics: list[str]) -> str:
    """What it means that a call needs no memory, where a table says so."""
    none = "memory" in metrics and any(row.row.peak_memory_bytes == 0 for row in rows)
    return f" {NONE_ASKED}" if none else ""


def _missing(store: Store, rows: list[Measured], variants: list[str]) -> str:
    """Which of the wanted variants (all if none is named) could not be timed at these points, and why."""
    points, known = {(row.case, row.direction, row.size, row.dtype) for row in rows}, palette.variants()
    names = {variant: palette.label(variant, case=rows[0].case) for variant in known}
    reasons = dict.fromkeys(
        f"{names.get(failure.variant, failure.variant)}: {_briefly(failure.explanation)}"
        for failure in store.failures(rows[0].machine)
        if (failure.case, failure.direction, failure.size, failure.dtype) in points
        and (not variants or failure.variant in (*variants, "*"))
    )
    return f" Not timed: {escape('; '.join(reasons))}." if reasons else ""


def _briefly(reason: str) -> str:
    """The beginning of what a failure said; all of it stands on the machine's page."""
    return textwrap.shorten(reason.removeprefix("LeftOut: "), 120, placeholder=" …").removesuffix(".")

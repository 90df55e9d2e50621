"""Tables from records: one panel a machine, every cell with its evidence."""

import textwrap
from collections.abc import Sequence
from html import escape

from docs.publish import evidence, palette, units
from docs.publish.errors import PublishError, unknown
from docs.publish.evidence import Evidence
from docs.publish.place import Place, machine_page
from docs.publish.records.store import DIRECTIONS, METRICS, MODES, PUBLISHED_MACHINE, Measured, Store

Names = str | Sequence[str] | None
NONE = "–"


def table(
    store: Store,
    place: Place,
    page: Evidence,
    case: str,
    metric: Names,
    variants: Names = None,
    shape: Names = None,
    direction: str | None = None,
    dtype: str | None = None,
    mode: str | None = None,
    over: str | None = None,
    machine: str | None = None,
    title: str = "",
) -> str:
    """A table as HTML, with a panel for each machine, the published one first.

    One metric at several shapes: a row for each shape, a column for each variant. Else: a row for each variant (and
    shape), a column for each metric.

    Raises:
        PublishError: nothing fits, or a choice is open.
    """
    metrics, shapes = _list(metric), _list(shape)
    for name in metrics:
        if name not in METRICS:
            raise unknown("metric", name, METRICS)
    if not metrics:
        raise PublishError(f"table: expected metric=..., one of {', '.join(METRICS)}")
    main = machine or PUBLISHED_MACHINE
    rows = _of_shapes(store.choose(case, main, direction=direction), shapes)
    for name, wanted in (("dtype", dtype), ("mode", mode)):
        rows = store.settle(rows, name, wanted)
    found = {main: rows}
    direction = rows[0].direction
    for other in store.machines if machine is None else ():
        if other != main and (rows := store.nearest(case, other, direction=direction, dtype=dtype, mode=mode)):
            fitting = [row for row in rows if row.size in shapes]
            found[other] = fitting or rows
    panels = [
        _panel(
            store, place, page, _of_variants(rows, _list(variants)), metrics, over, title, _list(variants), slug == main
        )
        for slug, rows in found.items()
    ]
    return f'<section class="rp-chart rp-chart--table" data-search-exclude>{"".join(filter(None, panels))}</section>'


def _list(names: Names) -> list[str]:
    return [names] if isinstance(names, str) else list(names or ())


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


def _panel(
    store: Store,
    place: Place,
    page: Evidence,
    rows: list[Measured],
    metrics: list[str],
    over: str | None,
    title: str,
    variants: list[str],
    shown: bool,
) -> str:
    """One machine's table; empty where none of the variants ran."""
    if not rows:
        return ""
    record = rows[0].record
    by_shape = len(metrics) == 1 and len({row.size for row in rows}) > 1
    grid = _by_shape(rows, metrics[0]) if by_shape else _by_variant(rows, metrics)
    head, body = grid

    def cell(row: Measured | None, metric: str) -> str:
        quantity = row and evidence.of_row(row, metric, over if metric == "speedup" else None, place)
        return page.show(quantity) if quantity else NONE

    heads = "".join(f'<th scope="col">{escape(text)}</th>' for text in head)
    lines = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{cell(row, metric)}</td>" for row, metric in cells)
        + "</tr>"
        for name, cells in body
    )
    name = escape(record.machine["name"])
    caption = f'<div class="rp-chart__title">{escape(title)}</div>' if title else ""
    link = f'<a href="{place.to(machine_page(rows[0].machine))}">{name}</a>'
    classes = "rp-chart__panel rp-shown" if shown else "rp-chart__panel"
    return (
        f'<figure class="{classes}" data-machine="{rows[0].machine}" data-name="{name}">'
        f'<figcaption>{caption}<div class="rp-chart__what">{escape(_what(rows[0], metrics, over))}</div></figcaption>'
        '<div class="rp-scroll"><table class="rp-table">'
        f"<thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>"
        f'<p class="rp-chart__source">{link}, {record.date[:10]}.{_missing(store, rows, variants)}</p></figure>'
    )


Grid = tuple[list[str], list[tuple[str, list[tuple[Measured | None, str]]]]]


def _by_shape(rows: list[Measured], metric: str) -> Grid:
    """Shapes down, variants across."""
    variants = list(dict.fromkeys(row.variant for row in rows))
    sizes = sorted(
        {row.size for row in rows}, key=lambda size: [int(number) for number in size.split("x")], reverse=True
    )
    at = {(row.size, row.variant): row for row in rows}
    head = [_dimensions(rows[0]), *map(palette.label, variants)]
    return head, [(units.size(size), [(at.get((size, name)), metric) for name in variants]) for size in sizes]


def _by_variant(rows: list[Measured], metrics: list[str]) -> Grid:
    """Variants down (with their shape, if there are several), metrics across."""
    several = len({row.size for row in rows}) > 1
    names = [palette.label(row.variant) + (f", {units.size(row.size)}" if several else "") for row in rows]
    body: list[tuple[str, list[tuple[Measured | None, str]]]] = [
        (name, [(row, metric) for metric in metrics]) for name, row in zip(names, rows, strict=True)
    ]
    return ["variant", *(METRICS[metric].label for metric in metrics)], body


def _what(row: Measured, metrics: list[str], over: str | None) -> str:
    """What the table shows, in a line."""
    labels = ", ".join(METRICS[metric].label for metric in metrics)
    against = f" over {palette.label(over)}" if over else ""
    timed = f", {MODES[row.mode]}" if any(METRICS[metric].power for metric in metrics) else ""
    return f"{labels[0].upper()}{labels[1:]}{against}. {DIRECTIONS[row.direction].capitalize()}, {row.dtype}{timed}"


def _missing(store: Store, rows: list[Measured], variants: list[str]) -> str:
    """Which of the wanted variants (all if none is named) could not be timed at these points, and why."""
    points, known = {(row.case, row.direction, row.size, row.dtype) for row in rows}, palette.variants()
    said = dict.fromkeys(
        f"{palette.label(failure.variant) if failure.variant in known else failure.variant}: {_briefly(failure.said)}"
        for failure in store.failures(rows[0].machine)
        if (failure.case, failure.direction, failure.size, failure.dtype) in points
        and (not variants or failure.variant in (*variants, "*"))
    )
    return f" Not timed: {escape('; '.join(said))}." if said else ""


def _briefly(said: str) -> str:
    """The beginning of what a failure said; all of it stands on the machine's page."""
    return textwrap.shorten(said, 120, placeholder=" …").removesuffix(".")


def _dimensions(row: Measured) -> str:
    return " × ".join(row.shape)

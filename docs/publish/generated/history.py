"""What the runs of each case have said over time."""

from itertools import groupby

from docs.publish import units
from docs.publish.markup import badges, blocks, code, front_matter, link, marks, table
from docs.publish.place import Place, machine_page
from docs.publish.records.measured import DIRECTIONS, MODES, Coordinates, Measured
from docs.publish.records.store import Store

SHOWN = 8  # the newest runs; older ones are in the records
WIDTH, HEIGHT = 96, 22


def page(store: Store, place: Place) -> str:
    """The history page as Markdown: for each machine and case, the time of every variant at the largest point."""
    introduction = (
        "Records are never replaced. Other pages show the newest run of a case; this one also has the older runs. The "
        "tables show the median time of a call at the largest shape that most runs of the case have, oldest run first. "
        "A stale time was measured with code, a case or a timer that has changed since."
    )
    parts = [front_matter("History", "What each run of a case measured, run by run"), introduction]
    for machine, name in store.machines.items():
        parts.append(f"## {name} {{ #{machine} }}")
        rows = sorted(store.select(Coordinates(machine=machine), history=True), key=_case)
        for case, ways in groupby(rows, lambda row: row.case):
            parts.append(f"### {case} {{ #{machine}-{case.replace('/', '-')} }}")
            for (_, direction, mode), timed in groupby(ways, _case):
                what = f"**{DIRECTIONS[direction]}**, {MODES[mode]} ({code(mode)})"
                parts += [what, _table(list(timed), place)]
    return blocks(parts)


def _case(row: Measured) -> tuple[str, str, str]:
    return row.case, row.direction, row.mode


def _table(rows: list[Measured], place: Place) -> str:
    """Variants down, runs across."""
    runs_with = {size: {row.record.id for row in rows if row.size == size} for size in {row.size for row in rows}}
    point = max(rows, key=lambda row: (len(runs_with[row.size]), row.row.bytes_read + row.row.flops, row.time.p50))
    shown = [row for row in rows if (row.size, row.dtype) == (point.size, point.dtype)]
    runs = list({row.record.id: row.record for row in shown}.values())[-SHOWN:]
    by_place = {(row.variant, row.record.id): row for row in shown}
    lines = []
    for variant in dict.fromkeys(row.variant for row in shown):
        times = [by_place.get((variant, run.id)) for run in runs]
        cells = [_cell(row) for row in times]
        lines.append(("", [code(variant), *cells, sparkline([row.time.p50 for row in times if row])]))
    head = [
        f"{units.size(point.size)} {point.dtype}",
        *(link(run.date[:16].replace("T", " "), f"{place.to(machine_page(run.machine['slug']))}") for run in runs),
        "trend" if len(runs) > 1 else "",
    ]
    return table(head, lines)


def _cell(row: Measured | None) -> str:
    if row is None:
        return "–"
    return units.text(row.time.p50, "s") + badges(marks(row))


def sparkline(values: list[float]) -> str:
    """A line over the runs, from zero, as SVG; nothing to draw for a single run."""
    if len(values) < 2:
        return ""
    step, top = WIDTH / (len(values) - 1), max(values)
    points = " ".join(
        f"{index * step:.1f},{HEIGHT - 2 - value / top * (HEIGHT - 4):.1f}" for index, value in enumerate(values)
    )
    change = units.text(values[-1] / values[0], "x")
    return (
        f'<svg class="rp-sparkline" role="img" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
        f"<title>The newest time is {change} the oldest</title>"
        f'<polyline points="{points}" fill="none" stroke="var(--rp-ink)" stroke-width="1.5"/></svg>'
    )

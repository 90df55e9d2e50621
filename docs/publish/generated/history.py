"""What the runs of each case have said over time."""

from itertools import groupby

from docs.publish import units
from docs.publish.markup import NONE, badges, blocks, code, front_matter, link, marks, table
from docs.publish.place import Place, machine_page
from docs.publish.records.measured import DIRECTIONS, MODES, Coordinates, Measured, point
from docs.publish.records.store import Store

SHOWN = 5  # the newest runs; older ones are in the records
WIDTH, HEIGHT = 96, 22


def page(store: Store, place: Place) -> str:
    """The history page as Markdown: for each machine and case, the time of every variant at one point."""
    introduction = (
        "Records are never replaced. Other pages show the newest run of a case; this one also shows older runs, oldest "
        "first: the median time of a call, at the shape and clock that most runs have. A case with one run is absent. "
        "A stale time was measured with code, a case or a timer that has changed since."
    )
    parts = [front_matter("History", "What each run of a case measured, run by run"), introduction]
    for machine, name in store.machines.items():
        parts.append(f"## {name} {{ #{machine} }}")
        rows = sorted(store.select(Coordinates(machine=machine), history=True), key=_case)
        for case, ways in groupby(rows, lambda row: row.case):
            tables = [table for _, timed in groupby(ways, _case) for table in _table(list(timed), place)]
            if tables:
                parts += [f"### {case} {{ #{machine}-{case.replace('/', '-')} }}", *tables]
    return blocks(parts)


def _case(row: Measured) -> tuple[str, str]:
    return row.case, row.direction


def _table(rows: list[Measured], place: Place) -> list[str]:
    """What was timed, and how long it took: variants down, runs across. Nothing of a single run."""
    runs_at: dict[tuple, set[str]] = {}
    for row in rows:
        runs_at.setdefault(point(row.row), set()).add(row.record.id)
    most = max(rows, key=lambda row: (len(runs_at[point(row.row)]), row.row.bytes_read + row.row.flops, row.time.p50))
    shown = [row for row in rows if point(row.row) == point(most.row)]
    runs = list({row.record.id: row.record for row in shown}.values())[-SHOWN:]
    if len(runs) < 2:
        return []
    by_place = {(row.variant, row.record.id): row for row in shown}
    lines = []
    for variant in dict.fromkeys(row.variant for row in shown):
        times = [by_place.get((variant, run.id)) for run in runs]
        cells = [units.text(row.time.p50, "s") + badges(marks(row)) if row else NONE for row in times]
        lines.append(("", [code(variant), *cells, sparkline([row.time.p50 for row in times if row])]))
    head = [
        f"{units.size(most.size)} {most.dtype}",
        *(link(run.date[:16].replace("T", " "), f"{place.to(machine_page(run.machine['slug']))}") for run in runs),
        "trend",
    ]
    what = f"**{DIRECTIONS[most.direction]}**, {MODES[most.mode]} ({code(most.mode)})"
    return [what, table(head, lines)]


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

"""Where ours is behind: every point of a case's grid at which another variant is faster by more than a margin."""

from dataclasses import replace
from html import escape

from docs.publish import evidence, markup, palette, units
from docs.publish.evidence import Evidence
from docs.publish.place import Place
from docs.publish.records.measured import DIRECTIONS, MODES, Coordinates, Measured
from docs.publish.records.store import Store

MARGIN = 0.03
Pair = tuple[Measured, Measured]


def losses(store: Store, place: Place, page: Evidence, case: str) -> str:
    """The table as HTML, and a sentence that says how many points there are.

    Raises:
        PublishError: the case was not measured.
    """
    pairs = against_the_best(store, Coordinates(case))
    lost = [pair for pair in pairs if pair[0].time.p50 > (1 + MARGIN) * pair[1].time.p50]
    margin = units.text(MARGIN, "%")
    where = f"at {len(lost)}" if lost else "at none"
    points = "1 point" if len(pairs) == 1 else f"{len(pairs)} points"
    sentence = f"Ours was timed beside others at {points}; {where} is the best of them over {margin} faster."
    if not lost:
        return f"<p data-search-exclude>{sentence}</p>"
    head = ("", "shape", "ours", "the best other", "", "ahead by")
    table = markup.table(head, (("", _cells(ours, best, place, page)) for ours, best in lost), searched=False)
    return f"<p data-search-exclude>{sentence}</p>{table}"


def against_the_best(store: Store, at: Coordinates) -> list[Pair]:
    """Ours, and the fastest other variant of the same run, at each point and mode of a case."""
    points: dict[Coordinates, list[Measured]] = {}
    for row in store.rows_of(at):
        points.setdefault(replace(row.coordinates, variant=None), []).append(row)
    pairs = []
    for beside in points.values():
        ours = [row for row in beside if row.variant == "ours"]
        others = [row for row in beside if row.variant != "ours"]
        if ours and others:
            pairs.append((ours[0], min(others, key=lambda row: row.time.p50)))
    return pairs


def _cells(ours: Measured, best: Measured, place: Place, page: Evidence) -> list[str]:
    def shown(row: Measured, metric: str, over: str | None = None) -> str:
        quantity = evidence.of_row(row, metric, over, place)
        return page.show(quantity) if quantity else markup.NONE

    return [
        f"{DIRECTIONS[ours.direction]}, {MODES[ours.mode]}",
        units.size(ours.size),
        shown(ours, "time"),
        shown(best, "time"),
        escape(palette.label(best.variant)),
        shown(best, "speedup", "ours"),
    ]

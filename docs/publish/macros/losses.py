"""Where ours is behind: every point of a case's grid at which another variant is faster by more than a margin."""

from html import escape

from docs.publish import evidence, palette, units
from docs.publish.evidence import Evidence, Quantity
from docs.publish.place import Place
from docs.publish.records.store import DIRECTIONS, MODES, PUBLISHED_MACHINE, Measured, Store

MARGIN = 0.03
Pair = tuple[Measured, Measured]


def losses(store: Store, place: Place, page: Evidence, case: str) -> str:
    """The table as HTML, and a sentence that says how many points there are.

    Raises:
        PublishError: the case was not measured.
    """
    pairs = against_the_best(store, case)
    lost = [pair for pair in pairs if pair[0].time.p50 > (1 + MARGIN) * pair[1].time.p50]
    margin = units.text(MARGIN, "%")
    where = f"at {len(lost)}" if lost else "at none"
    points = "1 point" if len(pairs) == 1 else f"{len(pairs)} points"
    said = f"Ours was timed beside others at {points}; {where} is the best of them over {margin} faster."
    if not lost:
        return f"<p data-search-exclude>{said}</p>"
    lines = "".join(_line(ours, best, place, page) for ours, best in lost)
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("", "shape", "ours", "the best other", "", "ahead by"))
    return (
        f'<p data-search-exclude>{said}</p><div class="rp-scroll" data-search-exclude><table class="rp-table">'
        f"<thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def against_the_best(store: Store, case: str, machine: str = PUBLISHED_MACHINE) -> list[Pair]:
    """Ours, and the fastest other variant of the same run, at each point and mode."""
    rows = store.rows_of(case, machine)
    points: dict[tuple, list[Measured]] = {}
    for row in rows:
        points.setdefault((row.direction, row.size, row.dtype, row.mode), []).append(row)
    pairs = []
    for beside in points.values():
        ours = [row for row in beside if row.variant == "ours"]
        others = [row for row in beside if row.variant != "ours"]
        if ours and others:
            pairs.append((ours[0], min(others, key=lambda row: row.time.p50)))
    return pairs


def _line(ours: Measured, best: Measured, place: Place, page: Evidence) -> str:
    what = f"{DIRECTIONS[ours.direction]}, {MODES[ours.mode]}"
    behind = evidence.of_row(best, "speedup", "ours", place)
    cells = (_shown(page, ours, place), _shown(page, best, place), escape(palette.label(best.variant)))
    return (
        f'<tr><th scope="row">{escape(what)}</th><td>{escape(units.size(ours.size))}</td>'
        f"<td>{cells[0]}</td><td>{cells[1]}</td><td>{cells[2]}</td><td>{_quantity(page, behind)}</td></tr>"
    )


def _shown(page: Evidence, row: Measured, place: Place) -> str:
    return _quantity(page, evidence.of_row(row, "time", None, place))


def _quantity(page: Evidence, quantity: Quantity | None) -> str:
    return page.show(quantity) if quantity else "–"

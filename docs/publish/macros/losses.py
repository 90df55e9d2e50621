"""Where ours is behind: every point of a case's grid at which another variant is faster by more than a margin.

And where it cannot be known: a side without a time has not lost, so each is named, with its points.
"""

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, replace
from html import escape

from docs.publish import markup, palette, units
from docs.publish.evidence import Evidence
from docs.publish.records.measured import DIRECTIONS, MODES, Coordinates, Measured
from docs.publish.records.schema import Failure
from docs.publish.records.store import Store

MARGIN = 0.03
IMPORT_FAILED = ("ModuleNotFoundError", "ImportError")  # what a failure's reason begins with
LEFT_OUT = "LeftOut"  # tests/benchmarks/sides.py: the case could build the side, and does not
Pair = tuple[Measured, Measured]


@dataclass(frozen=True)
class Missing:
    """A side without a time at a point at which ours has one.

    Attributes:
        at: the point, with the side as its variant.
        why: in words.
        absent: it was not there, rather than that it failed: ours has not won against it.
    """

    at: Coordinates
    why: str
    absent: bool


def losses(store: Store, page: Evidence, case: str) -> str:
    """A sentence that says how many points there are, the table as HTML, and what was not timed.

    Raises:
        PublishError: the case was not measured.
    """
    rows = store.rows_of(Coordinates(case))
    pairs, gaps = against_the_best(rows), missing(store, rows)
    lost = [pair for pair in pairs if pair[0].time.p50 > (1 + MARGIN) * pair[1].time.p50]
    parts = [f"<p data-search-exclude>{_sentence(pairs, lost, gaps)}</p>"]
    if lost:
        head = ("", "shape", "ours", "fastest other", "", "its speedup")
        cells = (("", _cells(ours, best, page)) for ours, best in lost)
        parts.append(markup.table(head, cells, searched=False))
    return "".join([*parts, _not_timed(gaps, sum(row.variant == "ours" for row in rows))])


def against_the_best(rows: Iterable[Measured]) -> list[Pair]:
    """Ours, and the fastest other variant beside it, at each point and mode of a case."""
    pairs = []
    for beside in _points(rows).values():
        ours = [row for row in beside if row.variant == "ours"]
        others = [row for row in beside if row.variant != "ours"]
        if ours and others:
            pairs.append((ours[0], min(others, key=lambda row: row.time.p50)))
    return pairs


def missing(store: Store, rows: list[Measured]) -> list[Missing]:
    """Of the sides that any run of the case on this machine knows: which have no time where ours has one."""
    case, machine = rows[0].case, rows[0].machine
    failures = [failure for failure in store.failures(machine) if failure.case == case]
    seen = {row.variant for row in store.select(Coordinates(case, machine=machine), history=True)}
    seen |= {failure.variant for failure in failures}
    known = [side for side in palette.load()["variants"] if side in seen and side != "ours"]
    return [
        _missing(replace(at, variant=side), failures)
        for at, beside in _points(rows).items()
        for side in known
        if "ours" in (timed := {row.variant for row in beside}) and side not in timed
    ]


def _points(rows: Iterable[Measured]) -> dict[Coordinates, list[Measured]]:
    points: dict[Coordinates, list[Measured]] = {}
    for row in rows:
        points.setdefault(replace(row.coordinates, variant=None), []).append(row)
    return points


def _missing(at: Coordinates, failures: list[Failure]) -> Missing:
    """Why a side has no time at a point."""
    said = [failure.explanation.removeprefix(f"{at.mode}: ") for failure in failures if _speaks_of(failure, at)]
    if not said:
        return Missing(at, "not tried here", absent=True)
    kind, _, text = said[0].partition(": ")
    why = "not installed" if kind in IMPORT_FAILED else text if kind.isidentifier() else said[0]
    return Missing(at, textwrap.shorten(why, 120, placeholder=" …"), absent=kind in (*IMPORT_FAILED, LEFT_OUT))


def _speaks_of(failure: Failure, at: Coordinates) -> bool:
    """Whether a failure is of this side at this point. One of a single mode begins with it: "graph: ..."."""
    mode = failure.explanation.partition(": ")[0]
    where = failure.variant, failure.direction, failure.size, failure.dtype
    return where == (at.variant, at.direction, at.shape, at.dtype) and (mode == at.mode or mode not in MODES)


def _sentence(pairs: list[Pair], lost: list[Pair], gaps: list[Missing]) -> str:
    """How many points there are, and at how many ours is behind; "none" only of points with no side missing."""
    margin, points = units.text(MARGIN, "%", exact=True), _counted(len(pairs))
    gone = {replace(gap.at, variant=None) for gap in gaps if gap.absent}
    rest = [ours for ours, best in pairs if (ours, best) not in lost]
    unknown = sum(replace(ours.coordinates, variant=None) in gone for ours in rest)
    if lost:
        said = f"At {len(lost)} of them, another is more than {margin} faster."
    elif not unknown:
        said = f"At none of them is another more than {margin} faster."
    else:
        said = f"At {len(rest) - unknown} of them, all others have a time, and none is more than {margin} faster."
    neither = "the point counts neither way" if unknown == 1 else "the points count neither way"
    silent = f" At {_counted(unknown)}, one of the others could not be timed, so {neither}."
    return f"This kernel was timed beside others at {points}. {said}{silent if unknown else ''}"


def _counted(points: int) -> str:
    return "1 point" if points == 1 else f"{points} points"


def _not_timed(gaps: list[Missing], points: int) -> str:
    """The sides without a time, each with its points and why, folded under a line that counts them."""
    if not gaps:
        return ""
    by_side: dict[str, dict[str, list[Coordinates]]] = {}
    for gap in gaps:
        by_side.setdefault(str(gap.at.variant), {}).setdefault(gap.why, []).append(gap.at)
    counts = (f"{palette.label(side)} at {sum(map(len, why.values()))}" for side, why in by_side.items())
    lines = [
        ("", [escape(palette.label(side)), escape(why), _listed(where)])
        for side, reasons in by_side.items()
        for why, where in reasons.items()
    ]
    summary = f"Not timed at some of {_counted(points)}: {escape('; '.join(counts))}"
    return (
        f"<details data-search-exclude><summary>{summary}</summary>"
        f"{markup.table(('variant', 'why', 'where'), lines, words=True, remark=True, searched=False)}</details>"
    )


def _listed(points: list[Coordinates]) -> str:
    """Points in words, those of a direction and mode together."""
    sizes: dict[str, list[str]] = {}
    for at in points:
        size = units.size(str(at.shape)).replace(" ", "\N{NO-BREAK SPACE}")
        sizes.setdefault(f"{DIRECTIONS[str(at.direction)]}, {MODES[str(at.mode)]}", []).append(size)
    return escape("; ".join(f"{where}: {', '.join(shapes)}" for where, shapes in sizes.items()))


def _cells(ours: Measured, best: Measured, page: Evidence) -> list[str]:
    return [
        f"{DIRECTIONS[ours.direction]}, {MODES[ours.mode]}",
        units.size(ours.size),
        page.cell(ours, "time"),
        page.cell(best, "time"),
        escape(palette.label(best.variant, True, best.case)),
        page.cell(best, "speedup", "ours"),
    ]

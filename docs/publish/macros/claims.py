"""Statements of order: what holds only while one number is smaller than others, or as large.

One that the records do not bear out stops the build: see the hooks, which list all that failed, on all pages.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from docs.publish import markup, units
from docs.publish.errors import PublishError, unknown
from docs.publish.evidence import Quantity
from docs.publish.records.measured import Coordinates, Measured
from docs.publish.records.schema import Sweep, SweepPoint, Tried, describe
from docs.publish.records.store import Store

Options = Mapping[str, int | bool | None]  # of a launch
Side = str | Quantity  # a variant, whose time is meant, or any number of the page
ALL = "all"  # every other variant that was timed beside it
HOST_BOUND = ("calls",)  # modes whose times are as much the host's as the code's
LEVEL = 0.03  # nobody sees less between two machines

# Whether a value bears the relation to another, for a margin: of "faster" and "slower" the values are times.
RELATIONS: dict[str, Callable[[float, float, float], bool]] = {
    "faster": lambda one, other, margin: one * (1 + margin) < other,
    "slower": lambda one, other, margin: one > other * (1 + margin),
    "no faster": lambda one, other, margin: one * (1 + margin) >= other,
    "no slower": lambda one, other, margin: one <= other * (1 + margin),
    "level": lambda one, other, margin: max(one, other) <= min(one, other) * (1 + margin),
}
RELATIONS |= {"less": RELATIONS["faster"], "more": RELATIONS["slower"]}
SAID = {  # how a statement says a relation
    **{f"{name} than": name for name in RELATIONS if name != "level"},
    "as fast as": "level",
    "level with": "level",
}
MARGINS = {"level": LEVEL, "no faster": LEVEL, "no slower": LEVEL}


@dataclass
class Verdict:
    """What the records say to a statement: what contradicts it, a line each, and what warns of its numbers."""

    against: list[str] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)

    def add(self, said: str, one: float, relation: str, others: Iterable[tuple[str, float]], margin: float) -> None:
        """Hold one value against others; `said` is what the error says of it."""
        for name, other in others:
            if not RELATIONS[relation](one, other, margin):
                self.against.append(f"{said} against {name}")


def verdict(
    store: Store, at: Coordinates, side: Side, relation: str, others: Sequence[Side], margin: float | None = None
) -> Verdict:
    """Whether a side bears a relation to every one of the others.

    Args:
        at: case, direction, shape, dtype and mode, where sides are variants.
        relation: see RELATIONS.
        others: what it is held against; "all" are all other variants that were timed beside it.
        margin: by how much at least, as a share; of "level" and "no faster", by how much at most.

    Raises:
        PublishError: the relation is unknown, nothing is compared, or a number that is meant was not measured.
    """
    if relation not in RELATIONS:
        raise unknown("relation", relation, RELATIONS)
    if not others:
        raise PublishError(f"expected what {side!r} is {relation} than, got nothing")
    margin = MARGINS.get(relation, 0.0) if margin is None else margin
    found = Verdict()
    if isinstance(side, Quantity):
        _of_numbers(found, side, relation, others, margin)
        return found
    for beside in _runs(store, at, {side, *others} - {ALL}):
        _of_variants(found, beside, side, relation, others, margin)
    return found


def parsed(statement: str) -> tuple[list[str], str, list[str]]:
    """The sides of "compile, graph faster than eager": those on the left, the relation, those on the right.

    Raises:
        PublishError: it says no relation of SAID.
    """
    for said in sorted(SAID, key=len, reverse=True):
        ones, found, others = statement.partition(f" {said} ")
        if found:
            left, right = ([name.strip() for name in names.split(",")] for names in (ones, others))
            return left, SAID[said], right
    raise PublishError(f"holds: expected sides with one of {', '.join(SAID)} between them, got {statement!r}")


def verdict_of_sweep(
    sweep: Sweep,
    points: Sequence[SweepPoint],
    stale: str,
    options: Options,
    relation: str,
    others: Sequence[Options],
    margin: float | None = None,
) -> Verdict:
    """Whether the best alternative with some options bears a relation to the best with others, or to the best without.

    An option that is None is one that an alternative does not have.

    Raises:
        PublishError: the relation is unknown, or nothing with these options was tried.
    """
    if relation not in RELATIONS:
        raise unknown("relation", relation, RELATIONS)
    found = Verdict(marks=["stale"] * bool(stale))
    for point in points:
        where = f"kernels/{sweep.kernel} {point.direction} {units.size(point.size)} {point.dtype} in {sweep.id}"
        rest = [tried for tried in point.tried if not _has(tried, options)]
        held = [(str(other), [tried for tried in point.tried if _has(tried, other)]) for other in others]
        one = _best([tried for tried in point.tried if _has(tried, options)], f"{where}: {options}")
        best = [(name, _best(known, f"{where}: {name}")) for name, known in held or [("the others", rest)]]
        said = f"{where}: {options} takes {units.text(one, 's')}"
        limits = [(f"{units.text(other, 's')} of {name}", other) for name, other in best]
        found.add(said, one, relation, limits, MARGINS.get(relation, 0.0) if margin is None else margin)
    return found


def _has(tried: Tried, options: Options) -> bool:
    return all(tried.options.get(name) == value for name, value in options.items())


def _best(tried: Sequence[Tried], what: str) -> float:
    if not tried:
        raise PublishError(f"{what}: expected one that was tried, got none")
    return min(alternative.time.p50 for alternative in tried)


def _of_numbers(found: Verdict, side: Quantity, relation: str, others: Sequence[Side], margin: float) -> None:
    numbers = [other for other in others if isinstance(other, Quantity)]
    if len(numbers) < len(others) or any(other.unit != side.unit for other in numbers):
        raise PublishError(f"expected numbers in {side.unit or 'no unit'} on both sides, got {others!r}")
    said = f"{side.entry['label']} is {side.text}"
    named = [(f"{other.text} ({other.entry['label']})", other.value) for other in numbers]
    found.add(said, side.value, relation, named, margin)
    found.marks += markup.marks(side, *numbers)


def _of_variants(
    found: Verdict, beside: dict[str, Measured], side: str, relation: str, others: Sequence[Side], margin: float
) -> None:
    names = [name for name in beside if name != side] if ALL in others else [str(other) for other in others]
    row = beside[side]
    said = f"{describe(row.row)} takes {units.text(row.time.p50, 's')} in {row.record.id},"
    named = [(f"{units.text(beside[name].time.p50, 's')} of {name}", beside[name].time.p50) for name in names]
    found.add(said, row.time.p50, relation, named, margin)
    found.marks += markup.marks(*(beside[name] for name in (side, *names)))


def _runs(store: Store, at: Coordinates, named: Set[Side]) -> Iterator[dict[str, Measured]]:
    """The variants at a point by name: of the current run, and where the host sets the pace, of each run of its code.

    A host-bound time depends on the machine as much as on the code, so such a statement must hold on each of them.

    Raises:
        PublishError: a variant that is named is not in the current run.
    """
    current = store.choose(at, "direction", "shape", "dtype", "mode")
    for name in named:
        store.settle(current, "variant", str(name))
    yield {row.variant: row for row in current}
    if current[0].mode not in HOST_BOUND:
        return
    point = replace(current[0].coordinates, variant=None)
    of_run: dict[str, dict[str, Measured]] = {}
    for row in store.select(point, history=True):
        same = row.row.sources.code == current[0].row.sources.code and row.stale == current[0].stale  # method, too
        if same and not row.row.busy:
            of_run.setdefault(row.record.id, {})[row.variant] = row
    of_run.pop(current[0].record.id, None)
    yield from (beside for beside in of_run.values() if named <= beside.keys())

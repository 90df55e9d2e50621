"""From records to what is drawn: for each machine a plot of marks, all in one unit, with its ceiling."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from docs.publish import palette, units
from docs.publish.errors import PublishError, unknown
from docs.publish.macros.charts.question import Question
from docs.publish.records.measured import Coordinates, Measured, Metric, Published, matrix_ceiling
from docs.publish.records.store import Store

NEAR = 0.7  # of the ceiling: where all values are above it, the axis begins below the lowest instead of at zero
NOISY = 0.4  # from p20 to p80, as a part of the value: where half of the marks spread further, nothing is drawn
FEW = 3  # points of a line
MIXES = {"triad": "measured ceiling of two reads per write"}


@dataclass(frozen=True)
class Mark:
    """One drawn value in base units, with its ends: see Published."""

    x: Any
    published: Published
    row: Measured
    value: float = field(init=False)
    low: float = field(init=False)
    high: float = field(init=False)
    variant: str = field(init=False)

    def __post_init__(self) -> None:
        said = self.published
        vars(self).update(value=said.value, low=said.low, high=said.high, variant=self.row.variant)

    def label(self, short: bool = False) -> str:
        return palette.label(self.variant, short, self.row.case)


@dataclass(frozen=True)
class Plot:
    """What is drawn for one machine: its marks, all in one unit, and the ceiling's height and name.

    Attributes:
        busy: the rows that are left out, since the machine was busy when they were measured.
        ranked: bars stand best first, rather than as `variants` has them.
        line: the marks are points of lines over a size.
        contest: several variants were asked for, to be compared.
        home: the machine is the page's own, of which its title speaks.
    """

    measure: Metric
    marks: list[Mark]
    unit: str
    ceiling: tuple[float, str] | None
    variants: list[str]
    busy: tuple[Measured, ...] = ()
    ranked: bool = True
    line: bool = False
    contest: bool = False
    home: bool = True

    @property
    def newest(self) -> Measured:
        """The row of the last mark: its run stands for the plot's. One that is left out where nothing is drawn."""
        return self.marks[-1].row if self.marks else self.busy[-1]

    @property
    def scale(self) -> float:
        return units.NAMED[self.unit][0]

    @property
    def start(self) -> float:
        """Where the axis of values begins: at zero; where everything lies near the ceiling, at a round value below."""
        values = [value for mark in self.marks for value in (mark.low, mark.high)]
        if self.ceiling is None or min(values) < NEAR * self.ceiling[0]:
            return 0
        low, high = (value / self.scale for value in (min(values), max(*values, self.ceiling[0])))
        step = 10.0 ** math.floor(math.log10(high - low)) if high > low else high / 10
        return round(math.floor((low - (high - low) / 4) / step) * step, 9) * self.scale

    @property
    def begins(self) -> str:
        """Where the axis begins, in words; empty where it begins at zero."""
        return f"the axis begins at {units.in_unit(self.start, self.unit, exact=True)}" if self.start else ""

    @property
    def undrawn(self) -> str:
        """Why there is nothing to see in a drawing of this machine's numbers; empty where there is."""
        spreads = [(mark.high - mark.low) / mark.value for mark in self.marks if mark.value and not mark.published.runs]
        points = len({mark.x for mark in self.marks}) if self.line else None
        if why := unfit(spreads, points):
            return why
        if self.contest and len(self.marks) == 1 and not self.busy:
            return f"only {self.marks[0].label()} was measured, and nothing beside it"
        return ""

    def show(self, value: float) -> str:
        """In the plot's unit."""
        return units.in_unit(value, self.unit)

    def label(self, mark: Mark) -> str:
        """A mark's value beside it, in the plot's unit; both ends of a range."""
        return units.ends(mark.low, mark.high, self.unit) if mark.published.runs else self.show(mark.value)

    def best(self, value: float) -> str:
        """In the unit that fits it best, as prose has it."""
        return units.text(value, self.measure.unit)

    def spread(self, mark: Mark) -> str:
        """From one end to the other, in words."""
        return f"{self.best(mark.low)} to {self.best(mark.high)}"

    @property
    def winners(self) -> list[Mark]:
        """Of a contest the best, and whatever its ends do not tell from the best; of others every mark."""
        if not self.contest or not self.marks:
            return self.marks
        best = (min if self.measure.lower_is_better else max)(self.marks, key=lambda mark: mark.value)
        return [mark for mark in self.marks if mark.low <= best.high and best.low <= mark.high]

    @property
    def spread_of(self) -> str:
        """What the ends are: of ranges over machines, drawn with a bar to their median, or of one run."""
        return "lowest to highest machine" if any(mark.published.runs for mark in self.marks) else "p20 to p80"


def unfit(spreads: Sequence[float], points: int | None) -> str:
    """Why numbers are too noisy to draw, or a line's points too few; empty where they are fit.

    Args:
        spreads: from p20 to p80, as parts of the values.
        points: of a line; None where there is no line.
    """
    if spreads and (middle := statistics.median(spreads)) > NOISY:
        said = units.text(middle, "%")
        return f"half of them spread over {said} of their value or more from the 20th to the 80th percentile"
    if points is not None and points < FEW:
        return f"a line needs {FEW} points at least, and there {'is' if points == 1 else 'are'} {points}"
    return ""


def plots(question: Question, store: Store) -> list[Plot]:
    """What there is to draw, machine by machine, that of the page first.

    Raises:
        PublishError: there is nothing, or more than one row a mark.
    """
    drawn = (_plot(question, rows, home=rows[0].machine == store.main) for rows in _rows(question, store) if rows)
    found = [plot for plot in drawn if plot]
    if not found:
        raise PublishError(f"chart: expected rows to draw, got none for {question}")
    return found


def _rows(question: Question, store: Store) -> list[list[Measured]]:
    """The rows to draw, machine by machine."""
    chosen = store.choose(question.at, *question.settled)
    others = [machine for machine in store.machines if machine != store.main]
    wanted = Coordinates(**{name: getattr(question.at, name) for name in ("case", *question.settled)})
    wanted = replace(wanted, direction=chosen[0].direction)
    return [chosen, *(store.nearest(replace(wanted, machine=machine)) for machine in others)]


def _plot(question: Question, rows: list[Measured], home: bool) -> Plot | None:
    """The marks of one machine; None where it has measured nothing of this."""
    variants = question.variants or tuple(palette.variants())
    asked = [row for row in rows if row.variant in variants]
    busy = tuple(row for row in asked if row.busy)
    marks = [mark for row in asked if not row.busy and (mark := _mark(question, row))]
    if not marks and not busy:
        return None
    if question.kind == "lines":
        _one_row_each(question, marks)
    drawn = [name for name in variants if any(mark.variant == name for mark in marks)]
    measure = replace(question.measure, unit=marks[0].published.unit) if marks else question.measure
    contest = question.kind == "bars" and question.better and len(question.variants) != 1
    ceiling = _ceiling(question.metric, marks[-1].row) if marks else None
    unit, line = _unit(measure, marks), question.kind == "lines"
    return Plot(measure, marks, unit, ceiling, drawn, busy, question.ranked, line, contest, home)


def _mark(question: Question, row: Measured) -> Mark | None:
    """A row as a mark; None where the row has no such metric (memory on a CPU)."""
    published = row.published(question.metric)
    return Mark(_x(question, row), published, row) if published else None


def _x(question: Question, row: Measured) -> Any:
    if question.kind == "bars":
        return None
    if question.x not in row.row.shape:
        raise unknown("chart: x", question.x, row.row.shape)
    return row.row.shape[question.x]


def _one_row_each(question: Question, marks: list[Mark]) -> None:
    """Lines leave the shape open: each variant must have one row at each x."""
    seen: dict[tuple, Mark] = {}
    for mark in marks:
        other = seen.setdefault((mark.variant, mark.x), mark)
        if other is not mark:
            raise PublishError(
                f"chart: expected one shape for each {question.x}, got {other.row.size} and {mark.row.size}"
            )


def _ceiling(metric: str, row: Measured) -> tuple[float, str] | None:
    """The height of the dashed line and its name, from the row's own run."""
    if metric in ("share", "bandwidth"):
        mix = row.row.mix
        rate = row.record.ceilings["bandwidth"][mix]["rate"]
        return (1.0 if metric == "share" else rate), MIXES.get(mix, f"measured {mix} ceiling")
    if metric in ("rate", "rate_share") and (peak := matrix_ceiling(row.row)):
        return (1.0 if metric == "rate_share" else peak), "measured matrix ceiling"
    return None


def _unit(measure: Metric, marks: list[Mark]) -> str:
    """One unit for the whole plot: the largest in which the middle value is at least one."""
    if measure.unit in units.FIXED:
        return measure.unit
    middle = sorted(mark.value for mark in marks)[len(marks) // 2] if marks else 0.0
    return units.fitting(middle, measure.unit)

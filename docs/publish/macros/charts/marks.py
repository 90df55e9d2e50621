"""From records to what is drawn: for each machine a plot of marks, all in one unit, with its ceiling."""

from dataclasses import dataclass, replace
from typing import Any

from docs.publish import palette, units
from docs.publish.errors import PublishError, unknown
from docs.publish.macros.charts.question import Question
from docs.publish.records.measured import Coordinates, Measured, Metric
from docs.publish.records.store import Store

MIXES = {"triad": "measured ceiling of two reads per write"}


@dataclass(frozen=True)
class Mark:
    """One drawn value in base units, from its 20th to its 80th percentile (the value where the time has no part)."""

    x: Any
    value: float
    low: float
    high: float
    row: Measured

    @property
    def variant(self) -> str:
        return self.row.variant

    def label(self, short: bool = False) -> str:
        return palette.label(self.variant, short)


@dataclass(frozen=True)
class Plot:
    """What is drawn for one machine: its marks, all in one unit, and the ceiling's height and name."""

    measure: Metric
    marks: list[Mark]
    unit: str
    ceiling: tuple[float, str] | None
    variants: list[str]

    @property
    def newest(self) -> Measured:
        """The row of the last mark: its run stands for the plot's."""
        return self.marks[-1].row

    @property
    def scale(self) -> float:
        return units.NAMED[self.unit][0]

    def show(self, value: float) -> str:
        """In the plot's unit."""
        return units.in_unit(value, self.unit)

    def best(self, value: float) -> str:
        """In the unit that fits it best, as prose has it."""
        return units.text(value, self.measure.unit)

    def spread(self, mark: Mark) -> str:
        """From the 20th to the 80th percentile, in words."""
        return f"{self.best(mark.low)} to {self.best(mark.high)}"


def plots(question: Question, store: Store) -> list[Plot]:
    """What there is to draw, machine by machine, that of the page first.

    Raises:
        PublishError: there is nothing, or more than one row a mark.
    """
    found = [plot for rows in _rows(question, store) if (plot := _plot(question, rows))]
    if not found:
        raise PublishError(f"chart: expected rows to draw, got none for {question}")
    return found


def _rows(question: Question, store: Store) -> list[list[Measured]]:
    """The rows to draw, machine by machine."""
    chosen = store.choose(question.at, *question.settled)
    others = [] if question.at.machine else [machine for machine in store.machines if machine != question.home]
    wanted = Coordinates(**{name: getattr(question.at, name) for name in ("case", *question.settled)})
    wanted = replace(wanted, direction=chosen[0].direction)
    found = [chosen, *(store.nearest(replace(wanted, machine=machine)) for machine in others)]
    return [_with_history(rows, store) for rows in found] if question.kind == "history" else found


def _with_history(rows: list[Measured], store: Store) -> list[Measured]:
    """The same rows from all runs, oldest first."""
    drawn = {row.coordinates for row in rows}
    every = store.select(Coordinates(rows[0].case, machine=rows[0].machine), history=True) if rows else []
    return [row for row in every if row.coordinates in drawn]


def _plot(question: Question, rows: list[Measured]) -> Plot | None:
    """The marks of one machine; None where it has measured nothing of this."""
    variants = question.variants or tuple(palette.variants())
    marks = [mark for row in rows if row.variant in variants and (mark := _mark(question, row))]
    if not marks:
        return None
    if question.kind == "lines":
        _one_row_each(question, marks)
    drawn = [name for name in variants if any(mark.variant == name for mark in marks)]
    unit = _unit(question.measure, marks)
    return Plot(question.measure, marks, unit, _ceiling(question.metric, marks[-1].row), drawn)


def _mark(question: Question, row: Measured) -> Mark | None:
    """A row as a mark; None where the row has no such metric (memory on a CPU)."""
    metric, over = question.metric, question.over
    value = row.metric(metric, over)
    if value is None or row.variant == over:
        return None
    low, high = row.spread(metric, over) or (value, value)
    return Mark(_x(question, row), value, low, high, row)


def _x(question: Question, row: Measured) -> Any:
    if question.kind == "bars":
        return None
    if question.kind == "history":
        return row.record.date
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
    if metric in ("rate", "rate_share") and row.matrix_ceiling:
        return (1.0 if metric == "rate_share" else row.matrix_ceiling), "measured matrix ceiling"
    return None


def _unit(measure: Metric, marks: list[Mark]) -> str:
    """One unit for the whole plot: the largest in which the middle value is at least one."""
    if measure.unit in units.FIXED:
        return measure.unit
    steps = units.STEPS[measure.unit]
    middle = sorted(mark.value for mark in marks)[len(marks) // 2]
    fitting = [name for scale, name in steps if scale <= middle]
    return (fitting or [steps[0][1]])[-1]

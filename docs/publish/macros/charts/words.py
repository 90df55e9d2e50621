"""What a chart says in words: its title, the line under it, and the drawing for those who cannot see it."""

import re

from docs.publish import evidence, units
from docs.publish.errors import unknown
from docs.publish.macros.charts.marks import Mark, Plot
from docs.publish.macros.charts.question import Question
from docs.publish.records.measured import DIRECTIONS, MODES


def title(question: Question, plot: Plot) -> str:
    """The page's title with its placeholders filled. Of other machines the page claims nothing: there, who is ahead.

    Where nobody can be, because there is one variant or no better direction, it is what the mark says.
    """
    if plot.home:
        return re.sub(r"\{([^{}]+)\}", lambda found: _filled(question, plot, found[1]), question.title)
    last = plot.marks
    if question.kind != "bars":
        end = max(mark.x for mark in plot.marks)
        last = [mark for mark in plot.marks if mark.x == end]
    best = (min if plot.measure.lower_is_better else max)(last, key=lambda mark: mark.value)
    where = f" at {best.x} {question.x}" if question.kind == "lines" else ""
    machine = plot.newest.record.machine["name"]
    if question.better and len(plot.variants) > 1:
        return f"{machine}: {best.label()} is ahead{where} with {_text(plot, best)}"
    return f"{machine}: {best.label()}{where}, {_text(plot, best)}"


def _filled(question: Question, plot: Plot, asked: str) -> str:
    """A placeholder's text: {ours}, {ours@4096}, {eager/ours} (a ratio of values) or {ceiling}."""
    if asked == "ceiling" and plot.ceiling:
        return plot.best(plot.ceiling[0])
    marks = [_mark_of(question, plot, name.strip()) for name in asked.split("/")]
    if len(marks) == 1:
        return _text(plot, marks[0])
    first, second = marks
    if question.metric == "time" and (ratio := second.row.published("speedup", first.variant)) and ratio.runs:
        return ratio.text  # the range of the ratio within each run
    return units.text(first.value / second.value, "x")


def _text(plot: Plot, mark: Mark) -> str:
    """A value in the unit that fits it best; both ends of a range."""
    return mark.published.text if mark.published.runs else plot.best(mark.value)


def _mark_of(question: Question, plot: Plot, name: str) -> Mark:
    """The mark of a variant; on lines at the x after "@", else at the title's shape, else at the largest x."""
    variant, _, x = name.partition("@")
    marks = [mark for mark in plot.marks if mark.variant == variant]
    if not marks:
        raise unknown("chart: title", variant, [*plot.variants, "ceiling"])
    shape = question.at.shape
    if x or (shape and question.kind == "lines"):
        fitting = [mark for mark in marks if str(mark.x) == x or mark.row.size == shape]
        if not fitting:
            raise unknown(f"chart: title: {question.x} of {variant}", x or shape, (mark.x for mark in marks))
        return fitting[-1]
    return marks[0] if marks[0].x is None else max(marks, key=lambda mark: mark.x)


def what(question: Question, plot: Plot) -> str:
    """One line under the title: what is drawn, and where it was measured."""
    row, name = plot.newest, plot.measure.label
    better = f", {'less' if plot.measure.lower_is_better else 'more'} is better" if question.better else ""
    shape = f"by {question.x}" if question.kind == "lines" else units.size(row.size, "×")
    timed = f", {MODES[row.mode]}" if plot.measure.power else ""
    timed += evidence.kind(mark.published for mark in plot.marks)
    work = question.work or DIRECTIONS[row.direction]
    where = f"{work[0].upper()}{work[1:]}, {row.dtype}, {shape}{timed}."
    begins = plot.begins if plot.marks and not plot.undrawn else ""
    zoomed = f" {begins[0].upper()}{begins[1:]}." if begins else ""
    return f"{name[0].upper()}{name[1:]}{better}. {where}{zoomed}"


def drawing(plot: Plot) -> str:
    """Every mark with its value."""
    said = (f"{mark.label()}{'' if mark.x is None else f' at {mark.x}'} {_text(plot, mark)}" for mark in plot.marks)
    return "; ".join(said)

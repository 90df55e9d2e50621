"""Charts from records: Vega-Lite, drawn as static SVG, made interactive on the first touch.

A chart answers one question, and its title says the answer, computed from the rows that it draws. Colours are CSS
variables of docs/theme/palette.json, so one drawing serves light and dark mode. Each is drawn twice, wide and for a
phone; CSS shows the one that fits. What a machine has not measured is not drawn for it.

question.py ──> marks.py ──> bars.py, curves.py ──> svg.py ──> panels.py ──> HTML
what a page     the rows     Vega-Lite, from the     drawn      with title,
asks            to draw      pieces of vega.py       and kept   source, table
"""

from collections.abc import Mapping
from typing import Any

from docs.publish import markup
from docs.publish.evidence import Evidence
from docs.publish.macros.charts import marks, panels
from docs.publish.macros.charts.question import Question
from docs.publish.records.store import Store


def render(spec: Mapping[str, Any], store: Store, shown: Evidence) -> str:
    """A chart as HTML: one panel a machine, each with title, static SVG (wide and narrow), source line and data table.

    Args:
        spec: kind ("bars" or "lines"), case, metric, and as far as needed to name one row a mark: variants, shape,
            direction, dtype, mode; x (a shape dimension) for "lines"; title with placeholders ({ours}, {ours@4096},
            {eager/ours}, {ceiling}); note, a sentence below, which like the title is of the published machine;
            work, what was timed, where that is more than the direction says;
            better=False where the values are no contest (two ways to time the same call); ranked=False for bars in the
            order of `variants` instead of best first.
        store: the records.
        shown: the page's evidence; the numbers of the data table are added to it.

    Raises:
        PublishError: the spec names nothing, or more than one row a mark; the message says what was expected.
    """
    question = Question.of(spec)
    plots = marks.plots(question, store)
    drawn = [panels.panel(question, plot, shown, first=not index) for index, plot in enumerate(plots)]
    return markup.panels(drawn)

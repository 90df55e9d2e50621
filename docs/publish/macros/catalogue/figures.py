"""Tables and charts from records."""

from collections.abc import Callable
from html import escape
from typing import Any

from docs.publish import markup
from docs.publish.errors import PublishError
from docs.publish.macros import calculators, charts, gains, ladder, losses, sweeps, tables, timelines
from docs.publish.macros import captures as capture_blocks
from docs.publish.macros.catalogue.shared import Names, Shared, listed
from docs.publish.macros.charts import roofline
from docs.publish.records.measured import Coordinates


class Figures(Shared):
    """Tables and charts from records, and drawn steps."""

    def table(
        self,
        metric: Names,
        variants: Names = (),
        at: Names = (),
        case: str = "",
        shape: Names = (),
        over: str | None = None,
        work: str = "",
        clock: str = "",
        **where: Any,
    ) -> str:
        """A table from records, see docs.publish.macros.tables.table; of several directions side by side.

        table(metric="time", variants=["eager", "compile"], at=["mlp", "decode"])
        """
        page, where = self._page, self._named(at, case, clock) | where
        shapes = where.pop("shape", shape)
        named = (listed(metric), listed(variants), listed(shapes))
        narrow = not isinstance(where.get("direction"), str | None)

        def drawn(title: str = "", **where: str) -> str:
            there = Coordinates(case or page.case, **where)
            return tables.table(self._store, page.evidence, there, *named, over, title, narrow, work)

        return page.put_html(_by_direction(drawn, where))

    def chart(self, at: str = "", clock: str = "", **spec: Any) -> str:
        """A chart from records, see docs.publish.macros.charts.render; of several directions side by side."""
        page, named = self._page, self._named(at, spec.get("case", ""), clock)
        if named:
            (named["shape"],) = named["shape"]
        spec = {"case": page.case} | named | spec
        return page.put_html(_by_direction(lambda **one: charts.render(one, self._store, page.evidence), spec))

    def roofline(self, **spec: Any) -> str:
        """A machine's roofs and what was measured below them, see docs.publish.macros.charts.roofline."""
        return self._page.put_html(roofline.render(spec, self._store, self._evidence, self._root))

    def gains(self, at: Names) -> str:
        """What a kernel gains, alone at some points and inside a compiled block, see docs.publish.macros.gains."""
        case = self._page.case
        return self._page.put_html(gains.of_one(self._store, self._evidence, case, self._named(at, case)["shape"]))

    def kernels(self, what: str) -> str:
        """All kernels beside each other: kernels("verdicts"), "typical", "worst" or "block"; see macros.gains."""
        return self._page.put_html(gains.of_all(self._store, self._evidence, self._root, what))

    def ladder(self, *names: str) -> str:
        """Components at their levels, all or some: ladder("layer_norm"); see docs.publish.macros.ladder."""
        return self._page.put_html(ladder.table(self._store, self._evidence, self._root, list(names)))

    def losses(self) -> str:
        """Every point of the case's grid at which ours is behind, see docs.publish.macros.losses."""
        return self._page.put_html(losses.losses(self._store, self._evidence, self._page.case))

    def calculator(self) -> str:
        """The page's own calculator, see docs.publish.macros.calculators."""
        return self._page.put_html(calculators.panel(self._store, self._captures, self._page))

    def sweep(self, kernel: str, direction: str, shape: str) -> str:
        """What a sweep tried at a point: sweep("softmax", direction="forward", shape="4096x32768")."""
        return self._page.put_html(sweeps.table(self._root, self._evidence, kernel, direction, shape))

    def timeline(self, section: str, title: str, of: str = "") -> str:
        """A step that a script printed, drawn: timeline("eager, timeline", "Three small layers", of="...")."""
        page, capture = self._page, self._printed(section, of)
        drawn = timelines.figure(capture, title)
        source = capture_blocks.provenance(self._captures, capture, page.evidence)
        caption = f"<figcaption>{escape(title)}</figcaption>"
        return page.put_html(f'<figure class="rp-figure">{drawn}{caption}</figure>\n{source}')


def _by_direction(drawn: Callable[..., str], spec: dict[str, Any]) -> str:
    """What is drawn of a specification: once, or for each of its directions, with a title and a note each.

    Raises:
        PublishError: the titles or notes are not as many as the directions.
    """
    directions = spec.get("direction")
    if directions is None or isinstance(directions, str):
        return drawn(**spec)
    own = {name: spec[name] for name in ("title", "note") if name in spec}
    for name, texts in own.items():
        if isinstance(texts, str) or len(texts) != len(directions):
            raise PublishError(f"{name}: expected one for each of {', '.join(directions)}, got {texts!r}")
    each = [{name: texts[at] for name, texts in own.items()} for at in range(len(directions))]
    return markup.beside(drawn(**spec | {"direction": name} | one) for name, one in zip(directions, each, strict=True))

"""What a page can call: each macro is a method of `Macros`."""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from docs.publish import markup
from docs.publish.errors import PublishError, unknown
from docs.publish.evidence import Quantity
from docs.publish.macros import captures as capture_blocks
from docs.publish.macros import (
    charts,
    claims,
    doors,
    folklore,
    gains,
    kernel_files,
    ladder,
    losses,
    numbers,
    suite,
    sweeps,
    tables,
    timelines,
)
from docs.publish.macros.calc import Input, calc
from docs.publish.macros.charts import roofline
from docs.publish.macros.claims import Side
from docs.publish.macros.page import Page
from docs.publish.records.asked import script_of
from docs.publish.records.captures import Capture, Captures
from docs.publish.records.measured import Coordinates
from docs.publish.records.store import Store
from tests.benchmarks.source import ROOT

Names = str | Sequence[str]  # a name, or several


class Macros:
    """What a page can call. Arguments by name, apart from the first few."""

    def __init__(self, store: Store, captures: Captures, page: Page, root: Path = ROOT):
        self._root = root
        self._store = store
        self._captures = captures
        self._page = page

    def number(self, case: str, variant: str, metric: str, **where: Any) -> str:
        """A measured number: number("kernels/rms-norm", "ours", "share", shape="32768x4096", direction="backward")."""
        return self._page.evidence.show(self.value(case, variant, metric, **where))

    def ceiling(self, name: str, mode: str | None = None, **where: Any) -> str:
        """A measured ceiling: ceiling("copy"), ceiling("bfloat16", "burst")."""
        return self._page.evidence.show(self.ceiling_value(name, mode, **where))

    def datasheet(self, device: str, figure: str) -> str:
        """What the vendor states: datasheet("NVIDIA H200", "bandwidth")."""
        return self._page.evidence.show(self.datasheet_value(device, figure))

    def machine(self, fact: str, **where: str) -> str:
        """What a machine's driver reports: machine("memory")."""
        return self._page.evidence.show(self.machine_value(fact, **where))

    def captured(self, section: str, *line: str, which: int = 1, of: str = "", on: str = "") -> str:
        """A number of a section that a script printed: captured("table", "decode", "max-autotune", which=4)."""
        return self._page.evidence.show(self.captured_value(section, *line, which=which, of=of, on=on))

    def calc(self, expression: str, unit: str, **inputs: Input) -> str:
        """Worked arithmetic: calc("2 * rows * width / copy", unit="us", rows=8, width=2, copy=ceiling_value(...))."""
        return self._page.evidence.show(calc(self._page.place, expression, unit, inputs))

    def value(self, case: str, variant: str, metric: str, over: str | None = None, **where: str) -> Quantity:
        """A measured number as an input of calc()."""
        return numbers.measured(self._store, self._page.place, Coordinates(case, variant, **where), metric, over)

    def ceiling_value(self, name: str, mode: str | None = None, **where: str) -> Quantity:
        """A measured ceiling as an input of calc()."""
        return numbers.ceiling(self._store, self._page.place, name, mode, Coordinates(**where))

    def machine_value(self, fact: str, **where: str) -> Quantity:
        """What a machine's driver reports as an input of calc()."""
        return numbers.machine(self._store, self._page.place, fact, Coordinates(**where))

    def captured_value(self, section: str, *line: str, which: int = 1, of: str = "", on: str = "") -> Quantity:
        """A number that a script printed, as an input of calc(): captured_value("table", "mlp", of="…")."""
        capture = self._printed(section, of, on)
        return capture_blocks.number(self._captures, capture, self._page.place, list(line), which)

    def datasheet_value(self, device: str, figure: str) -> Quantity:
        """A datasheet's figure as an input of calc()."""
        return numbers.datasheet(device, figure)

    def claim(
        self,
        side: Side,
        relation: str,
        *others: Side,
        text: str = "",
        case: str | None = None,
        shape: Names = (),
        margin: float | None = None,
        **where: str,
    ) -> str:
        """Words that hold only while the records bear them out: see docs.publish.macros.claims.

        claim("ours", "faster", "all", case="kernels/softmax", shape="every", direction="backward", text="ahead of all")
        """
        at, page = Coordinates(case, **where), self._page
        what = claims.words(side, relation, others, at, text)
        try:
            found = claims.verdict(self._store, at, side, relation, others, _list(shape), margin)
        except PublishError as error:
            found = claims.Verdict([str(error)])
        return page.put_claim(what, text, found.against, found.stale)

    def tried(
        self,
        kernel: str,
        options: claims.Options,
        relation: str,
        *others: claims.Options,
        direction: str,
        shape: Names,
        dtype: str = "bfloat16",
        margin: float | None = None,
        text: str = "",
    ) -> str:
        """Words that hold only while a kernel's newest sweep bears them out: see docs.publish.macros.claims.

        tried("softmax", {"PARTS": 1}, "slower", direction="forward", shape="1024x131072", text="lost")
        """
        what = claims.words(options, relation, others, Coordinates(kernel, direction=direction), text)
        try:
            sweep, points, stale = sweeps.points(self._root, kernel, direction, _list(shape), dtype)
            found = claims.verdict_of_sweep(sweep, points, stale, options, relation, others, margin)
        except PublishError as error:
            found = claims.Verdict([str(error)])
        return self._page.put_claim(what, text, found.against, found.stale)

    def table(
        self,
        case: str,
        metric: Names,
        variants: Names = (),
        shape: Names = (),
        over: str | None = None,
        work: str = "",
        **where: Any,
    ) -> str:
        """A table from records, see docs.publish.macros.tables.table; of several directions side by side."""
        page, named = self._page, (_list(metric), _list(variants), _list(shape))
        narrow = not isinstance(where.get("direction"), str | None)

        def drawn(title: str = "", **where: str) -> str:
            at = Coordinates(case, **where)
            return tables.table(self._store, page.place, page.evidence, at, *named, over, title, narrow, work)

        return page.put_html(_by_direction(drawn, where))

    def chart(self, **spec: Any) -> str:
        """A chart from records, see docs.publish.macros.charts.render; of several directions side by side."""
        page = self._page
        return page.put_html(
            _by_direction(lambda **one: charts.render(one, self._store, page.evidence, page.place), spec)
        )

    def roofline(self, **spec: Any) -> str:
        """A machine's roofs and what was measured below them, see docs.publish.macros.charts.roofline."""
        page = self._page
        return page.put_html(roofline.render(spec, self._store, page.evidence, page.place, self._root))

    def gains(self, case: str, shape: Names) -> str:
        """What a kernel gains, alone at some shapes and inside a compiled block, see docs.publish.macros.gains."""
        page = self._page
        return page.put_html(gains.of_one(self._store, page.place, page.evidence, case, _list(shape)))

    def kernels(self, what: str) -> str:
        """All kernels beside each other: kernels("verdicts"), "typical", "worst" or "block"; see macros.gains."""
        page = self._page
        return page.put_html(gains.of_all(self._store, page.place, page.evidence, self._root, what))

    def ladder(self, *names: str, direction: str = "both") -> str:
        """Components at their levels, all or some: ladder("layer_norm"); see docs.publish.macros.ladder."""
        page = self._page
        return page.put_html(ladder.table(self._store, page.place, page.evidence, self._root, list(names), direction))

    def folklore(self, anchor: str = "") -> str:
        """A belief of the page's front matter with its verdict, or those of all pages: see macros.folklore."""
        page, shared = self._page, (self._store, self._page.place, self._page.evidence, self._root)
        if anchor:
            return page.put_html(folklore.of_page(*shared, anchor, self.all()))
        return page.put_html(folklore.of_all(*shared, self.all()))

    def losses(self, case: str) -> str:
        """Every point of a case's grid at which ours is behind, see docs.publish.macros.losses."""
        return self._page.put_html(losses.losses(self._store, self._page.place, self._page.evidence, case))

    def sweep(self, kernel: str, direction: str, shape: str, dtype: str = "bfloat16") -> str:
        """What a sweep tried at a point: sweep("softmax", direction="forward", shape="4096x32768")."""
        return self._page.put_html(
            sweeps.table(self._root, self._page.place, self._page.evidence, kernel, direction, shape, dtype)
        )

    def jobs(self, *wanted: doors.Job) -> str:
        """A list of jobs, each with the page that answers it: jobs(["Time an op", "validation/timing.md", "…"]).

        A job whose page does not stand yet is left out.
        """
        return self._page.put_markdown(doors.jobs(self._root, wanted))

    def route(self, *legs: doors.Leg) -> str:
        """A path through pages, with minutes: route(["Timing", "validation/timing.md", "what to do there"], ...)."""
        return self._page.put_markdown(doors.route(self._root, self._page.place, legs))

    def clone(self, command: str) -> str:
        """The lines that install torch, clone the repository and run a command in it."""
        return self._page.put_markdown(doors.clone(self._page.place, command))

    def suite(self) -> str:
        """What the tests take by area, see docs.publish.macros.suite."""
        return self._page.put_html(suite.table(self._root, self._page.place))

    def output(
        self,
        section: str = "",
        lines: str = "",
        title: str = "",
        columns: bool = False,
        language: str = "text",
        of: str = "",
        on: str = "",
    ) -> str:
        """What the page's own script printed, or the one of that name: output("table", of="compiler/modes", on="gpu").

        See docs.publish.macros.captures.show. Without a device it is the GPU's if that is stored, else the CPU's.
        """
        page, capture = self._page, self._printed(section, of, on)
        shown = capture_blocks.show(self._captures, capture, page.place, page.evidence, lines, title, columns, language)
        return page.put_markdown(shown)

    def timeline(self, section: str, title: str, of: str = "", on: str = "") -> str:
        """A step that a script printed, drawn: timeline("eager, timeline", "Three small layers", of="...")."""
        page, capture = self._page, self._printed(section, of, on)
        drawn = timelines.figure(capture, title)
        source = capture_blocks.provenance(self._captures, capture, page.place, page.evidence)
        caption = f"<figcaption>{escape(title)}</figcaption>"
        return page.put_html(f'<figure class="rp-figure">{drawn}{caption}</figure>\n{source}')

    def kernel_file(self, name: str) -> str:
        """The panel that offers kernels/<name>.py to copy."""
        return self._page.put_markdown(kernel_files.panel(name, self._page.place, self._root))

    def snippet_file(self, path: str) -> str:
        """The panel that offers a file of snippets/ to copy, with all that it uses of others."""
        return self._page.put_markdown(kernel_files.snippet(path, self._page.place, self._root))

    def source(self, file: str) -> str:
        """A link to a file of the repository, as it is at the commit that is built."""
        if not (self._root / file).is_file():
            folder = (self._root / file).parent
            beside = sorted(path.relative_to(self._root).as_posix() for path in folder.glob("*") if path.is_file())
            raise unknown("source", file, beside)
        return f'<a href="{escape(self._page.place.source(file))}"><code>{escape(file)}</code></a>'

    def explorer(self, name: str) -> str:
        """What kernels/<name>.py, or the compiler's page, was compiled to: facts, and the button of the viewer."""
        from docs.publish.compiled.panel import panel  # brings Triton

        page = self._page
        return page.put_html(panel(self._store, self._captures, page.evidence, page.place, name))

    def compiled(self, name: str, at: str, function: str, **what: str) -> str:
        """A fact of a compiled kernel, or words, with a link into the viewer: see compiled/references.py.

        compiled("softmax", "forward-32768x4096", "_forward_row_kernel", fact="registers")
        compiled("softmax", "forward-32768x4096", "_forward_row_kernel", line="row = (tl.program_id", text="the row")
        """
        from docs.publish.compiled.references import reference

        return reference(self._captures, name, at, function, **what)

    def compiled_value(self, name: str, at: str, function: str, fact: str) -> Quantity:
        """A counted fact of a compiled kernel as an input of calc()."""
        from docs.publish.compiled.references import counted

        return counted(self._captures, name, at, function, fact)

    def _printed(self, section: str, of: str, on: str) -> Capture:
        """A section of what the page's own script printed, or the one that is named."""
        return self._captures.find(of or script_of(self._page.place.path), section, on)

    def all(self) -> dict[str, Callable]:
        """The macros by name."""
        names = [name for name in dir(self) if not name.startswith("_") and name != "all"]
        return {name: getattr(self, name) for name in names}


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


def _list(names: Names) -> list[str]:
    return [names] if isinstance(names, str) else list(names)

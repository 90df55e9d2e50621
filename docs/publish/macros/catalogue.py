"""What a page can call: each macro is a method of `Macros`."""

import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from docs.publish import markup
from docs.publish.errors import PublishError, unknown
from docs.publish.evidence import Quantity
from docs.publish.macros import (
    bounds,
    charts,
    claims,
    doors,
    entries,
    folklore,
    gains,
    kernel_files,
    ladder,
    losses,
    numbers,
    points,
    questions,
    suite,
    sweeps,
    tables,
    timelines,
)
from docs.publish.macros import captures as capture_blocks
from docs.publish.macros.calc import Input, calc
from docs.publish.macros.charts import roofline
from docs.publish.macros.claims import EVERY, Side
from docs.publish.macros.page import Page
from docs.publish.macros.shown import Shown, plain
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

    # ---- numbers ------------------------------------------------------------------------------------------------

    def gpu(self, variant: str, at: str, case: str = "", clock: str = "gpu") -> Shown:
        """GPU time of a variant at a named point of the page's case: gpu("compile", "decode")."""
        return self._measured("time", variant, at, case, clock)

    def wall(self, variant: str, at: str, case: str = "") -> Shown:
        """Wall clock of a call: wall("compile", "decode")."""
        return self._measured("time", variant, at, case, "wall")

    def gain(self, variant: str, over: str, at: str, case: str = "", clock: str = "") -> Shown:
        """By how much a variant is faster than another: gain("reduce-overhead", over="compile", at="decode")."""
        return self._measured("speedup", variant, at, case, clock, over)

    def memory(self, variant: str, at: str, case: str = "", clock: str = "") -> Shown:
        """Peak memory of a call."""
        return self._measured("memory", variant, at, case, clock)

    def launches(self, variant: str, at: str, case: str = "", clock: str = "") -> Shown:
        """How many kernels a call launches."""
        return self._measured("kernels", variant, at, case, clock)

    def share(self, variant: str, at: str, case: str = "", clock: str = "") -> Shown:
        """Bandwidth as a share of the ceiling that was measured in the same run."""
        return self._measured("share", variant, at, case, clock)

    def bandwidth(self, variant: str, at: str, case: str = "", clock: str = "") -> Shown:
        """Bytes that have to be moved, per second."""
        return self._measured("bandwidth", variant, at, case, clock)

    def rate(self, variant: str, at: str, case: str = "", clock: str = "") -> Shown:
        """Floating-point operations per second."""
        return self._measured("rate", variant, at, case, clock)

    def peak(self, variant: str, at: str, case: str = "", clock: str = "") -> Shown:
        """The rate as a share of the peak of matmuls that was measured in the same run."""
        return self._measured("rate_share", variant, at, case, clock)

    def error(self, variant: str, at: str, case: str = "", clock: str = "") -> Shown:
        """The largest difference from float64."""
        return self._measured("error", variant, at, case, clock)

    def build(self, variant: str, at: str, case: str = "", clock: str = "") -> Shown:
        """Seconds to build a variant with empty caches."""
        return self._measured("build", variant, at, case, clock)

    def number(self, case: str, variant: str, metric: str, over: str | None = None, **where: Any) -> Shown:
        """Any metric of METRICS at a point that has no name: number("kernels/rope", "ours", "registers", shape=...)."""
        place = self._page.place
        return self._shown(numbers.measured(self._store, place, Coordinates(case, variant, **where), metric, over))

    def ceiling(self, name: str, mode: str | None = None, **where: str) -> Shown:
        """A measured ceiling: ceiling("copy"), ceiling("bfloat16", "burst")."""
        return self._shown(numbers.ceiling(self._store, self._page.place, name, mode, Coordinates(**where)))

    def datasheet(self, device: str, figure: str) -> Shown:
        """What the vendor states: datasheet("NVIDIA H200", "bandwidth")."""
        return self._shown(numbers.datasheet(device, figure))

    def machine(self, fact: str, **where: str) -> Shown:
        """What a machine's driver reports: machine("memory")."""
        return self._shown(numbers.machine(self._store, self._page.place, fact, Coordinates(**where)))

    def captured(self, section: str, *line: str, which: int = 1, of: str = "", on: str = "") -> Shown:
        """A number of a section that a script printed: captured("table", "decode", "max-autotune", which=4)."""
        capture = self._printed(section, of, on)
        return self._shown(capture_blocks.number(self._captures, capture, self._page.place, list(line), which))

    def bound(self, name: str, /, case: str = "", **given: Any) -> Shown | str:
        """What a named function beside the case gives, see tests/benchmarks/bounds.py: bound("copied")."""
        page, case = self._page, case or self._page.case
        there = Macros(self._store, self._captures, page.of(case), self._root)._macros()
        found = bounds.find(self._root, case, name).show(page.place, given, there, NUMBERS)
        return found if isinstance(found, str) else self._shown(found)

    def calc(self, expression: str, unit: str, **inputs: Input | Shown) -> Shown:
        """Worked arithmetic: calc("2 * rows * width / copy", unit="us", rows=8, width=2, copy=ceiling("copy"))."""
        given = {name: plain(value) for name, value in inputs.items()}
        return self._shown(calc(self._page.place, expression, unit, given))

    # ---- statements ---------------------------------------------------------------------------------------------

    def holds(
        self, statement: str, at: str = "", case: str = "", clock: str = "", by: float | None = None, **sides: Shown
    ) -> str:
        """Nothing, or a stop of the build where the records contradict: see docs.publish.macros.claims.

        Where this machine's own records contradict, the page says so.

        holds("compile, graph faster than eager", at="decode, norms"), holds("a less than b", a=gpu(...), b=wall(...))
        """
        page, case = self._page, case or self._page.case
        ones, relation, others = claims.parsed(statement)
        numbers = {name: plain(side) for name, side in sides.items()}
        rest = [numbers.get(other, other) for other in others]
        places = points.several(self._root, case, at, clock) if at else [Coordinates(case)]
        found = [
            self._verdict(where, numbers.get(one, one), relation, rest, [where.shape or EVERY], by)
            for one, where in itertools.product(ones, places)
        ]
        against = [line for verdict in found for line in verdict.against]
        note = "" if sides else self._not_here(ones, relation, others, places, by)
        stale = any(verdict.stale for verdict in found)
        return page.put_claim(f"holds {statement!r}, at {at!r}", "", against, stale) + note

    def _not_here(
        self, ones: list[str], relation: str, others: list[str], places: list[Coordinates], by: float | None
    ) -> str:
        """A note where what holds on the published machine does not hold on this one, at points that both measured."""
        for one, where, slug in itertools.product(ones, places, self._store.here):
            here = replace(where, machine=slug)
            with contextlib.suppress(PublishError):
                if claims.verdict(self._store, here, one, relation, others, [where.shape or EVERY], by).against:
                    return ' <small class="rp-badge">not so on this machine</small>'
        return ""

    def claim(
        self,
        side: Side | Shown,
        relation: str,
        *others: Side | Shown,
        text: str = "",
        case: str | None = None,
        shape: Names = (),
        margin: float | None = None,
        **where: str,
    ) -> str:
        """Words that hold only while the records bear them out: see docs.publish.macros.claims.

        claim("ours", "faster", "all", case="kernels/softmax", shape="every", direction="backward", text="ahead of all")
        """
        one, *rest = map(plain, (side, *others))
        at = Coordinates(case, **where)
        found = self._verdict(at, one, relation, rest, _list(shape), margin)
        return self._page.put_claim(claims.words(one, relation, rest, at, text), text, found.against, found.stale)

    def _verdict(
        self,
        at: Coordinates,
        side: Side,
        relation: str,
        others: Sequence[Side],
        shapes: Sequence[str],
        margin: float | None,
    ) -> claims.Verdict:
        """What cannot be compared is as wrong as what does not hold, and stands in the same list."""
        try:
            return claims.verdict(self._store, at, side, relation, others, shapes, margin)
        except PublishError as error:
            return claims.Verdict([str(error)])

    def _measured(self, metric: str, variant: str, at: str, case: str, clock: str, over: str | None = None) -> Shown:
        where = replace(points.at(self._root, case or self._page.case, at, clock), variant=variant)
        return self._shown(numbers.measured(self._store, self._page.place, where, metric, over))

    def _named(self, at: Names, case: str, clock: str = "") -> dict[str, Any]:
        """What some named points share, and their shapes; nothing where none is named.

        Raises:
            PublishError: they differ in direction, dtype or clock.
        """
        found = [points.at(self._root, case or self._page.case, name, clock) for name in _list(at) if name]
        shared = {(one.direction, one.dtype, one.mode) for one in found}
        if len(shared) > 1:
            raise PublishError(f"at: expected points of one direction, dtype and clock, got {', '.join(_list(at))}")
        return {
            **{name: value for one in shared for name, value in zip(("direction", "dtype", "mode"), one, strict=True)},
            **({"shape": [str(one.shape) for one in found]} if found else {}),
        }

    def _shown(self, quantity: Quantity) -> Shown:
        return Shown(quantity, self._page.evidence)

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
        named = (_list(metric), _list(variants), _list(shapes))
        narrow = not isinstance(where.get("direction"), str | None)

        def drawn(title: str = "", **where: str) -> str:
            there = Coordinates(case or page.case, **where)
            return tables.table(self._store, page.place, page.evidence, there, *named, over, title, narrow, work)

        return page.put_html(_by_direction(drawn, where))

    def chart(self, at: str = "", clock: str = "", **spec: Any) -> str:
        """A chart from records, see docs.publish.macros.charts.render; of several directions side by side."""
        page, named = self._page, self._named(at, spec.get("case", ""), clock)
        if named:
            (named["shape"],) = named["shape"]
        spec = {"case": page.case} | named | spec
        return page.put_html(
            _by_direction(lambda **one: charts.render(one, self._store, page.evidence, page.place), spec)
        )

    def roofline(self, **spec: Any) -> str:
        """A machine's roofs and what was measured below them, see docs.publish.macros.charts.roofline."""
        page = self._page
        return page.put_html(roofline.render(spec, self._store, page.evidence, page.place, self._root))

    def gains(self, at: Names, case: str = "") -> str:
        """What a kernel gains, alone at some points and inside a compiled block, see docs.publish.macros.gains."""
        page, case = self._page, case or self._page.case
        shapes = self._named(at, case)["shape"]
        return page.put_html(gains.of_one(self._store, page.place, page.evidence, case, shapes))

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
            return page.put_html(folklore.of_page(*shared, anchor, self._macros()))
        return page.put_html(folklore.of_all(*shared, self._macros()))

    def losses(self, case: str = "") -> str:
        """Every point of a case's grid at which ours is behind, see docs.publish.macros.losses."""
        page = self._page
        return page.put_html(losses.losses(self._store, page.place, page.evidence, case or page.case))

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

    def questions(self, subject: str) -> str:
        """What people asked about a subject, with the pages that answer: see docs.publish.macros.questions."""
        return self._page.put_markdown(questions.table(self._root, self._page.place, subject))

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

    def section_lines(self, name: str, section: str) -> str:
        """How many lines a section of kernels/<name>.py has, by its mark in the file."""
        return str(kernel_files.section_lines(name, section, self._root))

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

    def counted(self, name: str, at: str, function: str, fact: str) -> Shown:
        """A counted fact of a compiled kernel, to compute with."""
        from docs.publish.compiled.references import counted

        return self._shown(counted(self._captures, name, at, function, fact))

    def _printed(self, section: str, of: str, on: str) -> Capture:
        """A section of what the page's own script printed, or the one that is named."""
        return self._captures.find(of or script_of(self._page.place.path), section, on)

    def all(self) -> dict[str, Any]:
        """What a page can use, by name: the macros, with what its front matter names for them, and its rows."""
        said = self._page.said
        return {**entries.known(self._macros(), said, NUMBERS), "rows": said.get("rows", {})}

    def _macros(self) -> dict[str, Callable]:
        names = [name for name in dir(self) if not name.startswith("_") and name != "all"]
        return {name: getattr(self, name) for name in names}


_RETURNS = {name: macro.__annotations__.get("return") for name, macro in vars(Macros).items() if callable(macro)}
NUMBERS = [name for name, returned in _RETURNS.items() if returned in (Shown, Shown | str) and not name.startswith("_")]


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

"""What a page can call: each macro is a method, of the class that its kind names."""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from docs.publish import markup
from docs.publish.errors import PublishError, unknown
from docs.publish.evidence import Quantity, Shown, plain
from docs.publish.macros import (
    bounds,
    calculators,
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
    questions,
    suite,
    sweeps,
    tables,
    timelines,
)
from docs.publish.macros import captures as capture_blocks
from docs.publish.macros.charts import roofline
from docs.publish.macros.claims import Side
from docs.publish.macros.page import Page
from docs.publish.records import cases
from docs.publish.records.asked import script_of
from docs.publish.records.captures import Capture, Captures
from docs.publish.records.measured import Coordinates
from docs.publish.records.store import Store
from tests.benchmarks.source import ROOT

Names = str | Sequence[str]  # a name, or several


class Shared:
    """A page's macros, on what is stored."""

    def __init__(self, store: Store, captures: Captures, page: Page, root: Path = ROOT):
        self._root = root
        self._store = store.of(str(page.said.get("measured_on", "")))
        self._captures = captures
        self._page = page
        self._evidence = page.evidence

    def _named(self, at: Names, case: str, clock: str = "") -> dict[str, Any]:
        """What some named points share, and their shapes; nothing where none is named.

        Raises:
            PublishError: they differ in direction, dtype or clock.
        """
        found = [cases.at(self._root, case or self._page.case, name, clock) for name in listed(at) if name]
        shared = {(one.direction, one.dtype, one.mode) for one in found}
        if len(shared) > 1:
            raise PublishError(f"at: expected points of one direction, dtype and clock, got {', '.join(listed(at))}")
        return {
            **{name: value for one in shared for name, value in zip(("direction", "dtype", "mode"), one, strict=True)},
            **({"shape": [str(one.shape) for one in found]} if found else {}),
        }

    def _shown(self, quantity: Quantity) -> Shown:
        return Shown(quantity, self._evidence)

    def _printed(self, section: str, of: str, on: str = "") -> Capture:
        """A section of what the page's own script printed, or the one that is named."""
        return self._captures.find(of or script_of(self._page.place.path), section, on)

    def _macros(self) -> dict[str, Callable]:
        names = [name for name in dir(self) if not name.startswith("_") and name != "all"]
        return {name: getattr(self, name) for name in names}


def listed(names: Names) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


# ---- numbers --------------------------------------------------------------------------------------------------------


def of_a_row(name: str, metric: str = "", clock: str = "") -> Callable[..., Shown]:
    """The macro of that name. It shows a metric, the one of its name if none is given, by a clock of its own."""

    def macro(
        self: Shared, variant: str, at: str, case: str = "", clock: str = clock, machine: str = "", over: str = ""
    ) -> Shown:
        where = cases.at(self._root, case or self._page.case, at, clock)
        where = replace(where, variant=variant, machine=machine or None)
        return self._shown(numbers.measured(self._store, self._page.place, where, metric or name, over or None))

    macro.__qualname__ = name  # as errors call it
    return macro


class Values(Shared):
    """Measured, stated by a vendor, printed by a script, or worked out.

    Of a row, by variant and point: gpu("compile", "decode"). It is of the page's case, by the point's main clock and on
    the published machine, unless case=, clock= and machine= say otherwise.
    """

    gpu = of_a_row("gpu", "time", "gpu")  # GPU time
    wall = of_a_row("wall", "time", "wall")  # wall clock of a call
    gain = of_a_row("gain", "speedup")  # how many times as fast as another: gain("graph", over="eager", at="decode")
    memory = of_a_row("memory")  # peak memory of a call
    launches = of_a_row("launches", "kernels")  # how many kernels a call launches
    share = of_a_row("share")  # bandwidth as a share of the ceiling that was measured in the same run
    bandwidth = of_a_row("bandwidth")  # bytes that have to be moved, per second
    rate = of_a_row("rate")  # floating-point operations per second
    peak = of_a_row(
        "peak", "rate_share"
    )  # the rate as a share of the peak of matmuls that was measured in the same run
    error = of_a_row("error")  # the largest difference from float64
    build = of_a_row("build")  # seconds to build with empty caches
    registers = of_a_row("registers")  # of a thread, in the kernel that takes most

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
        """What a named formula beside the case gives, see tests/benchmarks/bounds.py: bound("copied")."""
        page, case = self._page, case or self._page.case
        there = type(self)(self._store, self._captures, page.of(case), self._root)._macros()
        found = bounds.show(name, bounds.find(self._root, case, name), page.place, given, there)
        return found if isinstance(found, str) else self._shown(found)

    def counted(self, name: str, at: str, function: str, fact: str) -> Shown:
        """A counted fact of a compiled kernel, to compute with."""
        from docs.publish.compiled.panel import counted

        return self._shown(counted(self._captures, name, at, function, fact))


# ---- statements -----------------------------------------------------------------------------------------------------


class Statements(Shared):
    """Of a case's points, and of a kernel's sweep."""

    def holds(
        self,
        statement: str,
        at: str = "",
        case: str = "",
        clock: str = "",
        by: float | None = None,
        machine: str = "",
        **sides: Shown,
    ) -> str:
        """Nothing, or a stop of the build where the records contradict: see docs.publish.macros.claims.

        Where the records of another GPU or of this machine contradict, the page says so.

        holds("compile, graph faster than eager", at="decode, norms"), holds("a less than b", a=gpu(...), b=wall(...))
        """
        page, case = self._page, case or self._page.case
        ones, relation, others = claims.parsed(statement)
        if unnamed := sides.keys() - {*ones, *others}:
            raise PublishError(f"holds: expected sides that {statement!r} names, got {', '.join(sorted(unnamed))}")
        numbers = {name: plain(side) for name, side in sides.items()}
        rest = [numbers.get(other, other) for other in others]
        named = [cases.at(self._root, case, name.strip(), clock) for name in at.split(",") if at]
        places = [replace(place, machine=machine or None) for place in named or [Coordinates(case)]]
        found = [
            self._verdict(where, numbers.get(one, one), relation, rest, by)
            for one, where in itertools.product(ones, places)
        ]
        notes = [] if sides or machine else self._not_there(ones, relation, others, places, by)
        return page.put_statement(f"holds {statement!r}, at {at!r}", found) + markup.badges(notes)

    def _not_there(
        self, ones: list[str], relation: str, others: list[str], places: list[Coordinates], by: float | None
    ) -> list[str]:
        """Where what holds on the published machine does not hold: the other GPUs, and this machine."""
        store, found = self._store, []
        for slug, name in list(store.machines.items())[1:]:
            here = slug in store.here
            there = [replace(place, machine=slug) for place in places] if here or slug in store.gpus else []
            if any(self._contradicted(place, one, relation, others, by) for place in there for one in ones):
                found.append("not so on this machine" if here else f"not so on the {name}")
        return found

    def _contradicted(self, at: Coordinates, one: str, relation: str, others: list[str], by: float | None) -> bool:
        """By numbers of the code as it is, of a machine that was idle, at a point that was measured."""
        with contextlib.suppress(PublishError):
            found = claims.verdict(self._store, at, one, relation, others, by)
            return bool(found.against) and not found.marks
        return False

    def tried(
        self,
        kernel: str,
        options: claims.Options,
        relation: str,
        *others: claims.Options,
        direction: str,
        shape: Names,
        margin: float | None = None,
    ) -> str:
        """As `holds`, of what a kernel's newest sweep tried: see docs.publish.macros.claims.

        tried("softmax", {"PARTS": 1}, "slower", direction="forward", shape="1024x131072")
        """
        try:
            sweep, points, stale = sweeps.points(self._root, kernel, direction, listed(shape))
            found = claims.verdict_of_sweep(sweep, points, stale, options, relation, others, margin)
        except PublishError as error:
            found = claims.Verdict([str(error)])
        return self._page.put_statement(f"tried {options} {relation}, {kernel} {direction}", [found])

    def _verdict(
        self, at: Coordinates, side: Side, relation: str, others: Sequence[Side], margin: float | None
    ) -> claims.Verdict:
        """What cannot be compared is as wrong as what does not hold, and stands in the same list."""
        try:
            return claims.verdict(self._store, at, side, relation, others, margin)
        except PublishError as error:
            return claims.Verdict([str(error)])


# ---- tables and charts ----------------------------------------------------------------------------------------------


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


# ---- text -----------------------------------------------------------------------------------------------------------


class Texts(Shared):
    """What is no number, no statement and no figure."""

    def folklore(self, anchor: str = "") -> str:
        """A belief of the page's front matter with its verdict, or those of all pages: see macros.folklore."""
        shared = self._store, self._evidence, self._root
        if anchor:
            return self._page.put_html(folklore.of_page(*shared, anchor, self._macros()))
        return self._page.put_html(folklore.of_all(*shared, self._macros()))

    def jobs(self, *wanted: doors.Job) -> str:
        """A list of jobs, each with the page that answers it: jobs(["Time an op", "validation/timing.md", "…"])."""
        return self._page.put_markdown(doors.jobs(wanted))

    def route(self, *legs: doors.Leg) -> str:
        """A path through pages, with minutes: route(["Timing", "validation/timing.md", "what to do there"], ...)."""
        return self._page.put_markdown(doors.route(self._root, self._page.place, legs))

    def questions(self, subjects: Iterable[tuple[str, str]]) -> str:
        """What people asked about subjects, each with its heading: see docs.publish.macros.questions."""
        return self._page.put_markdown(questions.tables(self._root, self._page.place, subjects))

    def clone(self, command: str) -> str:
        """The lines that install torch, clone the repository and run a command in it."""
        return self._page.put_markdown(doors.clone(self._page.place, command))

    def fetch(self, source: str) -> str:
        """The line that fetches a file that a page embeds, as a script, and runs it."""
        return self._page.put_markdown(doors.fetch(self._page.place, source))

    def suite(self) -> str:
        """What the tests take by area, see docs.publish.macros.suite."""
        return self._page.put_html(suite.table(self._root, self._page.place))

    def output(
        self,
        section: str = "",
        lines: str = "",
        columns: bool = False,
        language: str = "text",
        of: str = "",
        on: str = "",
    ) -> str:
        """What the page's own script printed, or the one of that name: output("table", of="compiler/modes", on="gpu").

        See docs.publish.macros.captures.show. Without a device it is the GPU's if that is stored, else the CPU's.
        """
        capture = self._printed(section, of, on)
        shown = capture_blocks.show(self._captures, capture, self._evidence, lines, columns, language)
        return self._page.put_markdown(shown)

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

        return self._page.put_html(panel(self._store, self._captures, self._evidence, name))

    def compiled(self, name: str, at: str, function: str, **what: str) -> str:
        """A fact of a compiled kernel, or words, with a link into the viewer: see compiled/panel.py.

        compiled("softmax", "forward-32768x4096", "_forward_row_kernel", fact="registers")
        compiled("softmax", "forward-32768x4096", "_forward_row_kernel", line="row = (tl.program_id", text="the row")
        """
        from docs.publish.compiled.panel import reference

        return reference(self._captures, name, at, function, **what)


# ---- all of them ----------------------------------------------------------------------------------------------------


class Macros(Values, Statements, Figures, Texts):
    """What a page can call. Arguments by name, apart from the first few."""

    def all(self) -> dict[str, Any]:
        """What a page can use, by name: the macros, with what its front matter names for them, and its rows."""
        said = self._page.said
        return {**entries.known(self._macros(), said, NUMBERS), "rows": said.get("rows", {})}


RETURNED = {name: getattr(Macros, name).__annotations__.get("return") for name in dir(Macros) if name[0] != "_"}
NUMBERS = [name for name, what in RETURNED.items() if what in (Shown, Shown | str)]  # the macros that give one

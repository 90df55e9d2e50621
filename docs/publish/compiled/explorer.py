"""What a kernel page shows of the compiled code: the strip and the link on it, a page of facts, and the viewer's files.

The viewer is docs/theme/scripts/explorer.js. It reads index.json and the listings, which are plain text, and which the
page of facts links for readers without scripts.
"""

import functools
import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import triton

from docs.publish import units
from docs.publish.compiled import build, inductor
from docs.publish.compiled.build import Compiled
from docs.publish.errors import PublishError, unknown
from docs.publish.evidence import Evidence
from docs.publish.markup import NONE, code, front_matter, link, table
from docs.publish.place import Place, kernel_files
from docs.publish.records.captures import Captures
from docs.publish.records.measured import DIRECTIONS, PUBLISHED_MACHINE, Coordinates, Measured
from docs.publish.records.schema import Binary
from docs.publish.records.store import Store

MADE = f"Triton {triton.__version__}"
TARGETS = {"sm_80": "A100", "sm_90": "H100, H200", "sm_100": "B200", "gfx942": "MI300X", "cpu": "this build's CPU"}
TIMED = "sm_90"  # what PUBLISHED_MACHINE is
FORMS = {"python": "Python", "graph": "FX graph", "triton": "Inductor's Triton", "ttir": "TTIR", "ttgir": "TTGIR",
         "ptx": "PTX", "sass": "SASS", "amdgcn": "AMDGCN", "cpp": "Inductor's C++"}  # fmt: skip
LIMIT = 296_000  # bytes, compressed, of all listings of a kernel file: with index.json under 300 KB
Point = tuple[str, str, str]  # direction, size, dtype
COMPILER_PAGE = "what-compile-does"  # beside the kernel files
COMPILER_FUNCTION = "unit_rows"  # of that page
GROUPS = {
    "Resources": ("registers", "timed", "spilled", "shared", "warps", "size", "seconds"),
    "Instructions": ("loads", "stores", "tensor_core", "shuffles", "barriers", "fp64", "instructions"),
    "Launches": ("launches", "bytes"),
}  # tables of the page of facts


# ---- facts ----------------------------------------------------------------------------------------------------------


def _widths(counts: Mapping[str, int]) -> str:
    """ "12 of 128 bits, 1 of 32"."""
    return ", ".join(f"{n} of {bits} bits" for bits, n in sorted(counts.items(), key=lambda c: -int(c[0]))) or "none"


@dataclass(frozen=True)
class Fact:
    """One thing to know of a kernel: how it is shown, and why it matters."""

    key: str
    title: str
    why: str
    show: Callable[[Compiled], str]


def _count(key: str) -> Callable[[Compiled], str]:
    return lambda one: str(one.facts[key])


WHY = {
    "registers": "The threads of a multiprocessor divide its registers, so what one takes limits how many run there.",
    "spilled": "What did not fit into registers goes through memory, in every thread.",
    "shared": "Programs on one multiprocessor divide it among them; reductions and dots pass numbers through it.",
    "warps": "The threads of a program: more of them hide latency, fewer have less to wait for at a barrier.",
    "loads": "A thread should ask for 128 bits at once: narrower loads are more instructions for the same bytes.",
    "stores": "As for loads: narrower than 128 bits, the same bytes take up to eight times the instructions.",
    "tensor_core": "A dot without them runs at a small fraction of the GPU's rate; a kernel without a dot has none.",
    "shuffles": "Threads of a warp exchange numbers by them: the cost of a reduction within a warp.",
    "barriers": "Warps wait for each other there: the cost of a reduction across a program.",
    "fp64": "Slower than fp32 on every GPU, and almost always an accident: a Python float that nobody cast.",
    "instructions": "In the code, not as run: one in a loop counts once.",
    "size": "Long unrolled code has to come through the instruction cache.",
    "seconds": "What a first call at a new shape waits, on the machine that built this site.",
}
TITLES = {
    "spilled": "bytes spilled", "shared": "bytes of shared memory", "tensor_core": "tensor-core instructions",
    "fp64": "fp64 instructions", "size": "bytes of code", "seconds": "seconds to compile",
}  # fmt: skip
SHOWN: dict[str, Callable[[Compiled], str]] = {
    "loads": lambda one: _widths(one.facts["loads"]),
    "stores": lambda one: _widths(one.facts["stores"]),
    "seconds": lambda one: units.digits(one.seconds),
}
FACTS = tuple(Fact(key, TITLES.get(key, key), why, SHOWN.get(key, _count(key))) for key, why in WHY.items())
BAD = ("spilled", "fp64")  # more than none of it stands out


def values(one: Compiled) -> dict[str, str]:
    return {fact.key: fact.show(one) for fact in FACTS}


def options(one: Compiled) -> str:
    """ "num_warps 8, BLOCK 2048, UNIT 8"."""
    chosen = {name: value for name, value in one.options.items() if value is not None}
    return ", ".join(f"{name} {value or repr(value)}" for name, value in {**chosen, **one.constants}.items())


# ---- what was timed -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timed:
    """The binary of a kernel in the record of the newest measurement at a point, and whose it is."""

    row: Measured
    binary: Binary

    def differs(self, one: Compiled) -> bool:
        """Whether it has other resources than what was compiled here."""
        return (self.binary.registers, self.binary.shared_bytes) != (one.facts["registers"], one.facts["shared"])

    def said(self, one: Compiled) -> str:
        machine, version = self.row.record.machine["name"], self.row.record.software["triton"]
        if self.binary.hash == one.hash:
            return f"This is the binary that was timed on {machine}."
        registers = f"{self.binary.registers} registers" if self.differs(one) else "as many registers"
        spills = f"{4 * self.binary.spills} bytes of spills" if self.binary.spills else "no spills"
        return f"The binary that was timed on {machine} (Triton {version}) had {registers} and {spills}."


def timed(store: Store, name: str, point: Point, function: str) -> Timed | None:
    """None where the point was not measured, or its kernel has another name now."""
    direction, size, dtype = point
    case = f"kernels/{name.replace('_', '-')}"
    rows = store.select(Coordinates(case, "ours", direction, size, dtype, machine=PUBLISHED_MACHINE))
    found = [(row, binary) for row in rows for binary in row.row.binaries if binary.name == function]
    return Timed(*found[0]) if found else None


def notes(store: Store, name: str, point: Point, one: Compiled) -> list[str]:
    """What stands under a kernel's facts."""
    found = []
    if one.target == TIMED and (measured := timed(store, name, point, one.function)):
        found.append(measured.said(one))
    if one.fp64:
        arithmetic = f"{one.fp64['fp64']} fp64 instructions" if one.fp64["fp64"] else "no fp64 arithmetic"
        found.append(
            f"With its floats passed as fp64, as Inductor does on some versions of torch, it has {arithmetic} and "
            f"{one.fp64['registers']} registers."
        )
    return found


# ---- the viewer's files ---------------------------------------------------------------------------------------------


def names() -> list[str]:
    """What there is an explorer for: each kernel file, and the compiler's page."""
    return [*kernel_files(), COMPILER_PAGE]


def files(store: Store, captures: Captures, place: Callable[[str, str], Place]) -> Iterator[tuple[str, str]]:
    """Paths below the site's pages, with their content.

    Raises:
        PublishError: a kernel does not compile; a capture does not fit.
    """
    build.ensure([*kernel_files(), build.INDUCTOR])
    for name in names():
        path = f"compiled/{name}"
        configurations, listings = _configurations(store, captures, name)
        title = f"kernels/{name}.py" if name in kernel_files() else "torch.compile"
        used = {target for one in configurations for kernel in one["kernels"] for target in kernel["targets"]}
        index = {
            "title": title,
            "made": MADE,
            "targets": {target: gpu for target, gpu in TARGETS.items() if target in used},
            "forms": FORMS,
            "facts": [*({"key": f.key, "title": f.title, "why": f.why} for f in FACTS), *inductor.FACTS],
            "configurations": configurations,
        }
        yield f"{path}/index.json", json.dumps(index, separators=(",", ":"), ensure_ascii=False)
        yield from ((f"{path}/{listing}", text) for listing, text in listings.items())
        yield f"{path}.md", _page(store, name, title, index, place(f"{path}.md", f"{path}/"))


def _configurations(store: Store, captures: Captures, name: str) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Those of index.json, and the listings by path."""
    found: list[dict[str, Any]] = []
    listings: dict[str, str] = {}
    graphs = _graphs(captures, name)
    ours = build.results(name) if name in kernel_files() else {}
    for point in shown(captures, name):
        kernels = _ours(store, name, point, listings) if point in ours else []
        for graph in (graph for graph in graphs if graph.point == point):
            kernels += _inductors(graph, listings)
        label = f"{DIRECTIONS[point[0]]}, {units.size(point[1])}, {point[2]}"
        found.append({"id": _folder(point), "label": label, "kernels": kernels})
    return found, listings


def shown(captures: Captures, name: str) -> list[Point]:
    """The points that the viewer has: of as many shapes as stay within the limit."""
    graphs = _graphs(captures, name)
    texts: dict[Point, set[str]] = {}
    results = [build.results(name)] if name in kernel_files() else []
    if captured := [graph.point for graph in graphs if graph.machine]:
        made = build.results(build.INDUCTOR)
        results.append({point: made[point] for point in captured})
    for point, by_target in (item for its in results for item in its.items()):
        every = {text for launched in by_target.values() for one in launched for text in one.listings.values()}
        if every:
            texts.setdefault(point, set()).update(every)
    for graph in graphs:
        texts.setdefault(graph.point, set()).update(inductor.files(graph, "").values())
    found: list[Point] = []
    total: set[str] = set()
    for size in dict.fromkeys(size for _, size, _ in texts):
        points = [point for point in texts if point[1] == size]
        more = total.union(*(texts[point] for point in points))
        if not found or sum(map(_compressed, more)) <= LIMIT:
            found, total = found + points, more
    return found


@functools.cache
def _compressed(text: str) -> int:
    """Bytes as a server sends it."""
    return len(gzip.compress(text.encode()))


def _folder(point: Point) -> str:
    return "-".join(point[:2])


def _graphs(captures: Captures, name: str) -> list[inductor.Graph]:
    captured = inductor.captured(captures)
    if name == COMPILER_PAGE:
        return [graph for graph in [*captured, *inductor.fresh()] if graph.function == COMPILER_FUNCTION]
    return [graph for graph in captured if graph.function == name]


def _ours(store: Store, name: str, point: Point, listings: dict[str, str]) -> list[dict[str, Any]]:
    """The kernels of ours at a point."""
    kernels: dict[str, dict[str, Any]] = {}
    for target, launched in build.results(name)[point].items():
        for one in launched:
            first, last = inductor.functions(kernel_files()[name].read_text(encoding="utf-8"))[one.function]
            source = {"form": "python", "url": f"../../kernels/{name}.py", "line": first, "last": last}
            entry = {"name": one.function, "maker": "", "source": source, "provenance": "", "targets": {}}
            kernel = kernels.setdefault(one.function, entry)
            kernel["targets"][target] = _entry(one, _folder(point), listings) | {
                "notes": notes(store, name, point, one)
            }
    return list(kernels.values())


def _inductors(graph: inductor.Graph, listings: dict[str, str]) -> list[dict[str, Any]]:
    """The kernels that torch.compile made at a point."""
    folder = _folder(graph.point)
    shown: dict[str, dict[str, Any]] = {}
    if graph.machine:
        for target, launched in build.results(build.INDUCTOR)[graph.point].items():
            for one in launched:
                if one.function in graph.kernels:
                    shown.setdefault(one.function, {})[target] = _entry(one, folder, listings)
    listings |= inductor.files(graph, folder)
    return inductor.entries(graph, folder, shown)


def _entry(one: Compiled, folder: str, listings: dict[str, str]) -> dict[str, Any]:
    """A kernel for one target; its listings are added."""
    known = {text: path for path, text in listings.items()}  # GPUs of one vendor share what does not depend on them
    paths = {
        form: known.get(text, f"{folder}/{one.function}.{one.target}.{form}.txt") for form, text in one.listings.items()
    }
    listings |= {paths[form]: text for form, text in one.listings.items()}
    return {
        "options": options(one), "values": values(one), "bad": [key for key in BAD if one.facts[key]], "forms": paths,
    }  # fmt: skip


# ---- pages ----------------------------------------------------------------------------------------------------------


def panel(store: Store, captures: Captures, page: Evidence, place: Place, name: str) -> str:
    """What stands on the kernel's page, as HTML: the facts of its first shape, what differs, and the viewer's button.

    Raises:
        PublishError: there is no explorer of that name.
    """
    if name not in names():
        raise unknown("explorer", name, dict.fromkeys(names()))
    inductor.mark(_graphs(captures, name), page)
    there = place.to(f"compiled/{name}/")
    gpus = "A100, H100, B200 and MI300X"
    if name in kernel_files():
        said = f"{_headline(name)}{_differences(store, name)}"
        made = f"Compiled for {gpus} by {MADE} when this site was built, without a GPU."
    else:
        said = ""
        made = (
            f"Triton that torch.compile wrote on a GPU, compiled again for {gpus} by {MADE}. "
            "C++ that it wrote for the CPU which built this site."
        )
    return (
        f'<div class="rp-explorer" data-search-exclude>{said}<p>{made}</p>'
        f'<p><a class="rp-button" href="{there}" data-explorer="{place.to(f"compiled/{name}/index.json")}">'
        "Open the compiled code</a></p></div>\n"
    )


def _headline(name: str) -> str:
    """The facts of the first listed point's kernels as a small table."""
    every = ((point, [one for one in its[TIMED] if one.listings]) for point, its in build.results(name).items())
    point, listed = next((point, listed) for point, listed in every if listed)
    keys = ("registers", "spilled", "loads", "stores")
    shown = [fact for fact in FACTS if fact.key in keys]
    rows = [("", [code(one.function), *(_unbroken(fact.show(one)) for fact in shown)]) for one in listed]
    gpus = TARGETS[TIMED].replace(", ", " and ")
    what = f"<p>{DIRECTIONS[point[0]].capitalize()} of {_unbroken(units.size(point[1]))}, {point[2]}, for {gpus}:</p>"
    return what + table(("", *(fact.title for fact in shown)), rows)


def _unbroken(text: str) -> str:
    """HTML that may break after a comma alone."""
    return escape(text).replace(" ", "&nbsp;").replace(",&nbsp;", ", ")


def _differences(store: Store, name: str) -> str:
    """Where a binary that was timed has other resources than what was compiled here."""
    pairs = [
        (point, one, was)
        for point, by_target in build.results(name).items()
        for one in by_target.get(TIMED, [])
        if (was := timed(store, name, point, one.function))
    ]
    if not pairs:
        return ""
    other = [(point, one, was) for point, one, was in pairs if was.differs(one)]
    if not other:
        return f"<p>All {len(pairs)} binaries that were timed have as many registers as those compiled here.</p>"
    lines = dict.fromkeys(_difference(point, one, was) for point, one, was in other)
    few = f"Of the {len(pairs)} binaries that were timed, {len(other)} differ in resources from those compiled here"
    return f"<details><summary>{few}</summary><ul>{''.join(lines)}</ul></details>"


def _difference(point: Point, one: Compiled, was: Timed) -> str:
    then, now = was.binary.registers, one.facts["registers"]
    registers = f"{then} registers, {now} here" if then != now else "other shared memory"
    how = f"{registers}; timed with Triton {was.row.record.software['triton']}"
    return f"<li>{code(one.function)} at {_unbroken(units.size(point[1]))} ({how})</li>"


def reference(
    captures: Captures,
    name: str,
    at: str,
    function: str,
    target: str = TIMED,
    fact: str = "",
    line: str = "",
    text: str = "",
) -> str:
    """A link into the viewer, as HTML: a fact of a kernel, or words that lead to the line which has `line` in it.

    Args:
        name: of the kernel file.
        at: a configuration of the viewer: "forward-32768x4096".
        fact: the key of one of FACTS, whose value is shown.

    Raises:
        PublishError: there is no such configuration, kernel, fact or line.
    """
    results = build.results(name)
    points = {_folder(point): results[point] for point in shown(captures, name) if point in results}
    if at not in points:
        raise unknown("configuration", at, points)
    launched = {one.function: one for one in points[at].get(target, [])}
    if function not in launched:
        raise unknown(f"kernel of {at} for {target}", function, launched)
    facts = {one.key: one for one in FACTS}
    if fact and fact not in facts:
        raise unknown("fact", fact, facts)
    place = f"#compiled/{at}/{function}/{target}"
    if line:
        place += f"/python/{list(launched[function].listings)[-1]}/L{_line_with(line, name)}"
    words = facts[fact].show(launched[function]) if fact else text
    return f'<a href="{place}">{escape(words)}</a>'


def _line_with(fragment: str, name: str) -> int:
    lines = kernel_files()[name].read_text(encoding="utf-8").splitlines()
    found = [number for number, line in enumerate(lines, 1) if fragment in line]
    if len(found) != 1:
        raise PublishError(f"line: expected one line of kernels/{name}.py with {fragment!r}, got {len(found)}")
    return found[0]


def _page(store: Store, name: str, title: str, index: Mapping[str, Any], place: Place) -> str:
    """The page of facts, as Markdown: tables for each target, with links to the listings."""
    ours = name in kernel_files()
    what = f"{name}.py, compiled" if ours else f"What {title} made"
    page = f"kernels/{name.replace('_', '-')}/" if ours else f"compiler/{COMPILER_PAGE}/"
    explained = link("The kernel's page" if ours else "The compiler's page", place.to(page))
    parts = [front_matter(what, "Facts and listings of compiled kernels")]
    parts.append(
        f"<p>Compiled by {MADE} when this site was built, without a GPU. {explained} explains the code. Listings are "
        f"plain text: what came from line 12 of the source ends in {code('// line 12')}.</p>\n\n"
    )
    kernels = [kernel for one in index["configurations"] for kernel in one["kernels"]]
    sources = dict.fromkeys((kernel["source"]["form"], kernel["provenance"]) for kernel in kernels if kernel["maker"])
    for form, provenance in sources:
        parts.append(f"<p>{FORMS['cpp' if form == 'graph' else form]}: {escape(provenance)}</p>\n\n")
    for target in index["targets"]:
        heading = f"{TARGETS[target]} ({target})" if target != inductor.CPU else "This build's CPU"
        parts += [f"## {heading}\n\n", _table(store, name, target, index, place)]
    parts.append("## What the facts say\n\n")
    known = {key for kernel in kernels for its in kernel["targets"].values() for key in its["values"]}
    said = [fact for fact in index["facts"] if fact["key"] in known]
    parts += [f"<p><strong>{fact['title']}</strong>: {escape(fact['why'])}</p>\n\n" for fact in said]
    return "".join(parts)


def _table(store: Store, name: str, target: str, index: Mapping[str, Any], place: Place) -> str:
    """The tables of a target: one for each group of facts that its kernels have."""
    listed = {
        (one["id"], kernel["name"]): kernel
        for one in index["configurations"]
        for kernel in one["kernels"]
        if target in kernel["targets"]
    }
    lines: list[tuple[str, str, Mapping[str, str]]] = []  # a kernel, its listings, its facts
    seen = set()
    if name in kernel_files():
        for point, by_target in build.results(name).items():
            for one in by_target.get(target, []):
                key = _folder(point), one.function
                seen.add(key)
                forms = _links(listed[key], target, name, place) if key in listed else ""
                was = timed(store, name, point, one.function) if target == TIMED else None
                its = values(one) | ({"timed": str(was.binary.registers)} if was else {})
                lines.append((_line(point[0], point[1], one.function), forms, its))
    for (configuration, function), kernel in listed.items():
        if (configuration, function) not in seen:
            direction, _, size = configuration.partition("-")
            label = _line(direction, size, function, kernel["maker"])
            lines.append((label, _links(kernel, target, name, place), kernel["targets"][target]["values"]))
    return _grouped(lines, {fact["key"]: fact["title"] for fact in index["facts"]} | {"timed": "registers when timed"})


def _grouped(lines: Sequence[tuple[str, str, Mapping[str, str]]], titles: Mapping[str, str]) -> str:
    """A table for each group; the first has the links. What none has is said below."""
    parts: list[str] = []
    for heading, group in GROUPS.items():
        having = [line for line in lines if any(key in line[2] for key in group)]
        shown = [key for key in group if any(key in its for _, _, its in having)]
        absent = [key for key in shown if all(its.get(key) == "0" for _, _, its in having)]
        keys = [key for key in shown if key not in absent]
        rows = [
            ("", [line + forms * (not parts), *(escape(its.get(key, NONE)).replace(", ", ",<br>") for key in keys)])
            for line, forms, its in having
        ]
        if rows:
            heads = ("", *(titles[key] for key in keys))
            zeros = f"<p>None has {' or '.join(titles[key] for key in absent)}.</p>\n\n" if absent else ""
            parts.append(f"### {heading}\n\n{table(heads, rows)}\n\n{zeros}")
    return "".join(parts)


def _line(direction: str, size: str, kernel: str, maker: str = "") -> str:
    """A kernel at a point, in two lines or more: the names that torch.compile gives are long."""
    pieces = re.findall(r"\w{1,40}(?:(?<=_)|$)", kernel)
    by = f", by {maker}" if maker else ""
    return f"{'<br>'.join(map(code, pieces))}<br>{DIRECTIONS[direction]}, {units.size(size)}{by}"


def _links(kernel: Mapping[str, Any], target: str, name: str, place: Place) -> str:
    source = kernel["source"]
    paths = ({source["form"]: source["url"]} if kernel["maker"] else {}) | kernel["targets"][target]["forms"]
    links = [link(FORMS[form], place.to(f"compiled/{name}/{path}")) for form, path in paths.items()]
    return "<br>" + ", ".join(links)

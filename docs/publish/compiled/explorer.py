"""What a kernel page shows of the compiled code: the strip and the link on it, a page of facts, and the viewer's files.

The viewer is docs/theme/scripts/explorer.js. It reads index.json and the listings, which are plain text, and which the
page of facts links for readers without scripts.
"""

import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import triton

from docs.publish import units
from docs.publish.captures import Captures
from docs.publish.compiled import build, inductor
from docs.publish.compiled.build import Compiled
from docs.publish.errors import unknown
from docs.publish.evidence import Evidence
from docs.publish.kernel_files import files as kernel_files
from docs.publish.records import DIRECTIONS, PUBLISHED_MACHINE, Measured, Store
from docs.publish.results.markup import NONE, code, front_matter, link, table
from docs.publish.schema import Binary
from docs.publish.site import Place

MADE = f"Triton {triton.__version__}"
TARGETS = {"sm_80": "A100", "sm_90": "H100, H200", "sm_100": "B200", "gfx942": "MI300X", "cpu": "this build's CPU"}
TIMED = "sm_90"  # what PUBLISHED_MACHINE is
FORMS = {"python": "Python", "graph": "FX graph", "triton": "Inductor's Triton", "ttir": "TTIR", "ttgir": "TTGIR",
         "ptx": "PTX", "sass": "SASS", "amdgcn": "AMDGCN", "cpp": "Inductor's C++"}  # fmt: skip
LIMIT = 290_000  # bytes, compressed, of all listings of a kernel file: with index.json under 300 KB
COMPILER_PAGE = "what-compile-does"  # beside the kernel files
COMPILER_FUNCTION = "unit_rows"  # of that page


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
    "registers": "A multiprocessor has 65536 for all its threads, so what one takes limits how many run there.",
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
    return ", ".join(f"{name} {value}" for name, value in {**chosen, **one.constants}.items())


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


def timed(store: Store, name: str, point: tuple[str, str, str], function: str) -> Timed | None:
    """None where the point was not measured, or its kernel has another name now."""
    direction, size, dtype = point
    case = f"kernels/{name.replace('_', '-')}"
    rows = store.select(
        case=case, machine=PUBLISHED_MACHINE, variant="ours", direction=direction, shape=size, dtype=dtype
    )
    found = [(row, binary) for row in rows for binary in row.row.binaries if binary.name == function]
    return Timed(*found[0]) if found else None


def notes(store: Store, name: str, point: tuple[str, str, str], one: Compiled) -> list[str]:
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
    """Those of index.json, and the listings by path: of as many shapes as stay within the limit."""
    found: list[dict[str, Any]] = []
    listings: dict[str, str] = {}
    graphs = _graphs(captures, name)
    ours = build.results(name) if name in kernel_files() else {}
    points = dict.fromkeys([*(point for point in ours if _is_listed(ours[point])), *(graph.point for graph in graphs)])
    for size in dict.fromkeys(size for _, size, _ in points):
        more, its = dict(listings), []
        for point in (point for point in points if point[1] == size):
            kernels = _ours(store, name, point, more) if point in ours else []
            for graph in (graph for graph in graphs if graph.point == point):
                kernels += _inductors(graph, more)
            label = f"{DIRECTIONS[point[0]]}, {units.size(size)}, {point[2]}"
            its.append({"id": _folder(point), "label": label, "kernels": kernels})
        if not found or compressed(more) <= LIMIT:
            found, listings = found + its, more
    return found, listings


def compressed(listings: Mapping[str, str]) -> int:
    """Bytes of all of them as a server sends them."""
    return sum(len(gzip.compress(text.encode())) for text in listings.values())


def _folder(point: tuple[str, str, str]) -> str:
    return "-".join(point[:2])


def _is_listed(by_target: Mapping[str, Sequence[Compiled]]) -> bool:
    return any(one.listings for launched in by_target.values() for one in launched)


def _graphs(captures: Captures, name: str) -> list[inductor.Graph]:
    captured = inductor.captured(captures)
    if name == COMPILER_PAGE:
        return [graph for graph in [*captured, *inductor.fresh()] if graph.function == COMPILER_FUNCTION]
    return [graph for graph in captured if graph.function == name]


def _ours(store: Store, name: str, point: tuple[str, str, str], listings: dict[str, str]) -> list[dict[str, Any]]:
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
    ours = name in kernel_files()
    said = f"{_headline(name)}{_differences(store, name)}" if ours else ""
    what = "for A100, H100, B200 and MI300X" if ours else "for GPUs, from a capture, and for this build's CPU"
    return (
        f'<div class="rp-explorer" data-search-exclude>{said}<p>'
        f'<a class="rp-button" href="{there}" data-explorer="{place.to(f"compiled/{name}/index.json")}">'
        f"Open the compiled code</a> <span>Compiled {what} by {MADE} when this site was built, without a GPU.</span>"
        "</p></div>\n"
    )


def _headline(name: str) -> str:
    """The facts of the first listed point's kernels as a small table."""
    every = ((point, [one for one in its[TIMED] if one.listings]) for point, its in build.results(name).items())
    point, listed = next((point, listed) for point, listed in every if listed)
    keys = ("registers", "spilled", "loads", "stores")
    shown = [fact for fact in FACTS if fact.key in keys]
    rows = [("", [code(one.function), *(escape(fact.show(one)) for fact in shown)]) for one in listed]
    what = f"<p>{DIRECTIONS[point[0]].capitalize()} of {units.size(point[1])}, {point[2]}, for {TARGETS[TIMED]}:</p>"
    return what + table(("", *(fact.title for fact in shown)), rows).rstrip("\n")


def _differences(store: Store, name: str) -> str:
    """Where a binary that was timed has other resources than what was compiled here."""
    other: dict[str, None] = {}
    number = 0
    for point, by_target in build.results(name).items():
        for one in by_target.get(TIMED, []):
            measured = timed(store, name, point, one.function)
            number += bool(measured)
            if measured and measured.differs(one):
                where = f"{code(one.function)} at {units.size(point[1])}"
                was, now = measured.binary.registers, one.facts["registers"]
                version = measured.row.record.software["triton"]
                registers = f"{was} registers, {now} here" if was != now else "other shared memory"
                other[f"{where} ({registers}; timed with Triton {version})"] = None
    if not number:
        return ""
    if not other:
        return f"<p>All {number} binaries that were timed have as many registers as those compiled here.</p>"
    few = f"Of the {number} binaries that were timed, {len(other)} differ in resources from those compiled here"
    return f"<p>{few}: {'; '.join(other)}.</p>"


def _page(store: Store, name: str, title: str, index: Mapping[str, Any], place: Place) -> str:
    """The page of facts, as Markdown: a table for each target, with links to the listings."""
    what = f"What {title} became" if name in kernel_files() else "What torch.compile made"
    parts = [front_matter(what, "Facts and listings of compiled kernels")]
    parts.append(f"<p>Compiled by {MADE} when this site was built, without a GPU.</p>\n\n")
    for target in index["targets"]:
        parts += [f"## {TARGETS[target]} ({target})\n\n", _table(store, name, target, index, place)]
    parts.append("## What the facts say\n\n")
    parts += [f"<p><strong>{fact.title}</strong>: {escape(fact.why)}</p>\n\n" for fact in FACTS]
    return "".join(parts)


def _table(store: Store, name: str, target: str, index: Mapping[str, Any], place: Place) -> str:
    listed = {
        (one["id"], kernel["name"]): kernel
        for one in index["configurations"]
        for kernel in one["kernels"]
        if target in kernel["targets"]
    }
    rows = []
    seen = set()
    if name in kernel_files():
        for point, by_target in build.results(name).items():
            for one in by_target.get(target, []):
                key = _folder(point), one.function
                seen.add(key)
                forms = _links(listed[key], target, name, place) if key in listed else NONE
                was = timed(store, name, point, one.function) if target == TIMED else None
                rows.append(_line(point, one.function, values(one), str(was.binary.registers) if was else NONE, forms))
    for configuration in index["configurations"]:
        for kernel in configuration["kernels"]:
            key = configuration["id"], kernel["name"]
            if key in listed and key not in seen:
                direction, _, size = key[0].partition("-")
                its = kernel["targets"][target]["values"]
                label = f"{kernel['name']} ({kernel['maker']})"
                rows.append(_line((direction, size, ""), label, its, NONE, _links(kernel, target, name, place)))
    heads = ("", "shape", "kernel", *(fact.title for fact in FACTS), "registers when timed", "listings")
    return table(heads, rows)


def _line(
    point: tuple[str, str, str], kernel: str, its: Mapping[str, str], was: str, forms: str
) -> tuple[str, Sequence[str]]:
    facts = [escape(its.get(fact.key, NONE)) for fact in FACTS]
    return "", [DIRECTIONS[point[0]], units.size(point[1]), code(kernel), *facts, was, forms]


def _links(kernel: Mapping[str, Any], target: str, name: str, place: Place) -> str:
    paths = kernel["targets"][target]["forms"]
    return ", ".join(link(FORMS[form], place.to(f"compiled/{name}/{path}")) for form, path in paths.items())

"""The page of facts beside the viewer: tables for each target, with links to the listings."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from docs.publish import units
from docs.publish.compiled import build, inductor
from docs.publish.compiled.compilation import TIMED
from docs.publish.compiled.facts import values
from docs.publish.compiled.subjects import COMPILER_PAGE, FORMS, MADE, TARGETS, configuration_of, title_of
from docs.publish.compiled.timed import timed
from docs.publish.markup import NONE, code, front_matter, link, table
from docs.publish.place import Place, kernel_files
from docs.publish.records.measured import DIRECTIONS
from docs.publish.records.store import Store

GROUPS = {
    "Resources": ("registers", "timed", "spilled", "shared", "warps", "size", "seconds"),
    "Instructions": ("loads", "stores", "tensor_core", "shuffles", "barriers", "fp64", "instructions"),
    "Launches": ("launches", "bytes"),
}  # tables
Line = tuple[str, str, Mapping[str, str]]  # a kernel, links to its listings, its facts


def page(store: Store, name: str, index: Mapping[str, Any], place: Place) -> str:
    """The page as Markdown.

    Args:
        index: what index.json holds.
    """
    ours = name in kernel_files()
    what = f"{name}.py, compiled" if ours else f"What {title_of(name)} made"
    path = f"kernels/{name.replace('_', '-')}/" if ours else f"compiler/{COMPILER_PAGE}/"
    explained = link("The kernel's page" if ours else "The compiler's page", place.to(path))
    points = (
        f" For {TARGETS[TIMED]} at every published shape, for other GPUs at those with listings and the widest rows."
        if ours
        else ""
    )
    parts = [front_matter(what, "Facts and listings of compiled kernels")]
    parts.append(
        f"<p>Compiled by {MADE} when this site was built, without a GPU.{points} {explained} explains the code. "
        f"Listings are plain text: what came from line 12 of the source ends in {code('// line 12')}.</p>\n\n"
    )
    kernels = [kernel for configuration in index["configurations"] for kernel in configuration["kernels"]]
    sources = dict.fromkeys((kernel["source"]["form"], kernel["provenance"]) for kernel in kernels if kernel["maker"])
    for form, provenance in sources:
        parts.append(f"<p>{FORMS['cpp' if form == 'graph' else form]}: {escape(provenance)}</p>\n\n")
    for target in index["targets"]:
        heading = f"{TARGETS[target]} ({target})" if target != inductor.CPU else "This build's CPU"
        parts += [f"## {heading}\n\n", _tables(store, name, target, index, place)]
    parts.append("## What the facts say\n\n")
    known = {key for kernel in kernels for made in kernel["targets"].values() for key in made["values"]}
    facts = [fact for fact in index["facts"] if fact["key"] in known]
    parts += [f"<p><strong>{fact['title']}</strong>: {escape(fact['why'])}</p>\n\n" for fact in facts]
    return "".join(parts)


def _tables(store: Store, name: str, target: str, index: Mapping[str, Any], place: Place) -> str:
    """The tables of a target: one for each group of facts that its kernels have."""
    listed = {
        (configuration["id"], kernel["name"]): kernel
        for configuration in index["configurations"]
        for kernel in configuration["kernels"]
        if target in kernel["targets"]
    }
    lines: list[Line] = []
    seen = set()
    if name in kernel_files():
        for point, by_target in build.results(name).items():
            for kernel in by_target.get(target, []):
                key = configuration_of(point), kernel.function
                seen.add(key)
                forms = _links(listed[key], target, name, place) if key in listed else ""
                measured = timed(store, name, point, kernel.function) if target == TIMED else None
                facts = values(kernel) | ({"timed": str(measured.binary.registers)} if measured else {})
                lines.append((_line(point[0], point[1], kernel.function), forms, facts))
    for (configuration, function), entry in listed.items():
        if (configuration, function) not in seen:
            direction, _, size = configuration.partition("-")
            label = _line(direction, size, function, entry["maker"])
            lines.append((label, _links(entry, target, name, place), entry["targets"][target]["values"]))
    return _grouped(lines, {fact["key"]: fact["title"] for fact in index["facts"]} | {"timed": "registers when timed"})


def _grouped(lines: Sequence[Line], titles: Mapping[str, str]) -> str:
    """A table for each group; the first has the links. Below a table stands what none of its kernels has."""
    parts: list[str] = []
    for heading, group in GROUPS.items():
        having = [line for line in lines if any(key in line[2] for key in group)]
        known = [key for key in group if any(key in facts for _, _, facts in having)]
        absent = [key for key in known if all(facts.get(key) == "0" for _, _, facts in having)]
        keys = [key for key in known if key not in absent]
        rows = [
            ("", [label + forms * (not parts), *(escape(facts.get(key, NONE)).replace(", ", ",<br>") for key in keys)])
            for label, forms, facts in having
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

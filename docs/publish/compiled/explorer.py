"""The files of the viewer, which is docs/theme/scripts/explorer.js: index.json, listings, and a page of facts.

The listings are plain text, and the page of facts links them for readers without scripts.
"""

import functools
import gzip
import json
from collections.abc import Callable, Iterator
from typing import Any

from docs.publish import units
from docs.publish.compiled import build, cuda, inductor
from docs.publish.compiled.build import Compiled
from docs.publish.compiled.facts import BAD, FACTS, notes, options, values
from docs.publish.compiled.page import page
from docs.publish.compiled.subjects import FORMS, MADE, TARGETS, Point, configuration_of, graphs_of, names, title_of
from docs.publish.place import Place, kernel_files
from docs.publish.records.captures import Captures
from docs.publish.records.measured import DIRECTIONS
from docs.publish.records.store import Store

LIMIT = 296_000  # bytes, compressed, of all listings of a kernel file: with index.json under 300 KB


def files(store: Store, captures: Captures, place: Callable[[str, str], Place]) -> Iterator[tuple[str, str]]:
    """Paths below the site's pages, with their content.

    Raises:
        PublishError: a kernel does not compile; a capture does not fit.
    """
    build.ensure([*kernel_files(), build.INDUCTOR])
    for name in names():
        path = f"compiled/{name}"
        content, listings = index(store, captures, name)
        yield f"{path}/index.json", json.dumps(content, separators=(",", ":"), ensure_ascii=False)
        yield from ((f"{path}/{listing}", text) for listing, text in listings.items())
        yield f"{path}.md", page(store, name, content, place(f"{path}.md", f"{path}/"))


def index(store: Store, captures: Captures, name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """What index.json holds, and the listings by path."""
    configurations, listings = _configurations(store, captures, name)
    kernels = [kernel for configuration in configurations for kernel in configuration["kernels"]]
    used = {target for kernel in kernels for target in kernel["targets"]}
    content = {
        "title": title_of(name),
        "made": MADE,
        "targets": {target: gpu for target, gpu in TARGETS.items() if target in used},
        "forms": FORMS,
        "facts": [*FACTS, *inductor.FACTS],
        "configurations": configurations,
    }
    return content, listings


def shown(captures: Captures, name: str) -> list[Point]:
    """The points that the viewer has: of as many shapes as stay within the limit."""
    texts = _texts(captures, name)
    found: list[Point] = []
    total: set[str] = set()
    for size in dict.fromkeys(size for _, size, _ in texts):
        points = [point for point in texts if point[1] == size]
        more = total.union(*(texts[point] for point in points))
        if not found or sum(map(_compressed, more)) <= LIMIT:
            found, total = found + points, more
    return found


def _texts(captures: Captures, name: str) -> dict[Point, set[str]]:
    """All listings of each point that has some."""
    graphs = graphs_of(captures, name)
    texts: dict[Point, set[str]] = {}
    results = [build.results(name), cuda.results(name)] if name in kernel_files() else []
    if captured := [graph.point for graph in graphs if graph.machine]:
        made = build.results(build.INDUCTOR)
        results.append({point: made[point] for point in captured})
    for point, by_target in (item for points in results for item in points.items()):
        every = {text for launched in by_target.values() for kernel in launched for text in kernel.listings.values()}
        if every:
            texts.setdefault(point, set()).update(every)
    for graph in graphs:
        texts.setdefault(graph.point, set()).update(inductor.files(graph, "").values())
    return texts


@functools.cache
def _compressed(text: str) -> int:
    """Bytes as a server sends it."""
    return len(gzip.compress(text.encode()))


def _configurations(store: Store, captures: Captures, name: str) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Those of index.json, and the listings by path."""
    found: list[dict[str, Any]] = []
    listings: dict[str, str] = {}
    graphs = graphs_of(captures, name)
    ours = build.results(name) if name in kernel_files() else {}
    for point in shown(captures, name):
        kernels = _ours(store, name, point, listings) if point in ours else []
        for graph in (graph for graph in graphs if graph.point == point):
            kernels += _inductors(graph, listings)
        label = f"{DIRECTIONS[point[0]]}, {units.size(point[1])}, {point[2]}"
        found.append({"id": configuration_of(point), "label": label, "kernels": kernels})
    return found, listings


def _ours(store: Store, name: str, point: Point, listings: dict[str, str]) -> list[dict[str, Any]]:
    """The kernels of ours at a point, in Triton and in CUDA C++."""
    kernels: dict[tuple[str, str], dict[str, Any]] = {}
    places = inductor.functions(kernel_files()[name].read_text(encoding="utf-8"))
    in_cuda = cuda.results(name).get(point, {})
    every = [("", *launched) for launched in build.results(name)[point].items()]
    every += [(cuda.MAKER, *launched) for launched in in_cuda.items()]
    for maker, target, launched in every:
        for compiled in {each.function: each for each in launched}.values():  # of a function's launches the last
            file = cuda.source(name).name if maker else f"{name}.py"
            first, last = cuda.lines_of(name, compiled.function) if maker else places[compiled.function]
            source = {
                "form": "cuda" if maker else "python",
                "url": f"../../kernels/{file}",
                "line": first,
                "last": last,
            }
            made_by = f"kernels/{file}, compiled by {cuda.compiler()} when this site was built." if maker else ""
            entry = {"name": compiled.function, "maker": maker, "source": source, "provenance": made_by, "targets": {}}
            kernel = kernels.setdefault((maker, compiled.function), entry)
            said = [] if maker else notes(store, name, point, compiled)
            kernel["targets"][target] = _entry(compiled, configuration_of(point), listings) | {"notes": said}
    return list(kernels.values())


def _inductors(graph: inductor.Graph, listings: dict[str, str]) -> list[dict[str, Any]]:
    """The kernels that torch.compile made at a point."""
    folder = configuration_of(graph.point)
    made: dict[str, dict[str, Any]] = {}
    if graph.machine:
        for target, launched in build.results(build.INDUCTOR)[graph.point].items():
            for compiled in launched:
                if compiled.function in graph.kernels:
                    made.setdefault(compiled.function, {})[target] = _entry(compiled, folder, listings)
    listings |= inductor.files(graph, folder)
    return inductor.entries(graph, folder, made)


def _entry(compiled: Compiled, folder: str, listings: dict[str, str]) -> dict[str, Any]:
    """A kernel for one target; its listings are added."""
    known = {text: path for path, text in listings.items()}  # GPUs of one vendor share what does not depend on them
    paths = {
        form: known.get(text, f"{folder}/{compiled.function}.{compiled.target}.{form}.txt")
        for form, text in compiled.listings.items()
    }
    listings |= {paths[form]: text for form, text in compiled.listings.items()}
    return {
        "options": options(compiled),
        "values": values(compiled),
        "bad": [key for key in BAD if compiled.facts[key]],
        "forms": paths,
    }

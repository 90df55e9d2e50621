"""What torch.compile made of a function, in the form in which the viewer shows kernels of ours beside it.

Triton comes from captures of a GPU (tests/benchmarks/captures.py) and is compiled here for every target, as ours is.
C++ is made when the site is built: snippets/compiler/inductor_code.py runs on this machine's CPU, and what it printed
is kept until it changes.
"""

import ast
import functools
import json
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton

from docs.publish import kept, units
from docs.publish.compiled.compilation import CACHE, Compilation, Pair
from docs.publish.errors import PublishError
from docs.publish.evidence import Evidence
from docs.publish.records.captures import Captures
from docs.publish.records.schema import Run
from snippets.validation import compiled_code
from snippets.validation.compiled_code import TARGETS
from tests.benchmarks import captures as printing
from tests.benchmarks.case import Point
from tests.benchmarks.reached import reached
from tests.benchmarks.source import ROOT, digest_texts

MAKER = "torch.compile"
SCRIPT = "compiler/inductor_code"  # all that it prints on a GPU is shown by the viewer
MODULE = printing.module_of(SCRIPT)
PARTS = ("graph", "kernels", "launches", "counts")
FOLDER = CACHE / "inductor"
GPUS = {"A100": "sm_80", "H100": "sm_90", "H200": "sm_90", "B200": "sm_100", "MI300X": "gfx942"}
THREADS = 1024  # of a program, at most, on every target
CPU = "cpu"  # in place of a target
FACTS = (
    {
        "key": "launches",
        "title": "launches of the graph",
        "why": "Each reads its inputs from memory and writes its results there; kernels that were fused need not.",
    },
    {
        "key": "bytes",
        "title": "bytes that the launch gets",
        "why": "All tensors passed, each counted once: the traffic if caches keep what is read twice.",
    },
)


@dataclass(frozen=True)
class Graph:
    """What Inductor made of one graph, and where that was seen.

    Attributes:
        function, direction, size, dtype: "rms_norm", "backward", "32768x4096", "bfloat16".
        text: the graph after all passes.
        source: the Triton kernels as one file; of C++, the kernels, each under a line "// NAME".
        launches: in order; `binary` of a Triton kernel says how it is launched.
        counts: kernels, launches, bytes by Inductor's count, bytes passed.
        machine: the GPU's name; "" for a CPU.
        provenance: a sentence or two.
        stale: names of its captures that were printed by other code.
    """

    function: str
    direction: str
    size: str
    dtype: str
    text: str
    source: str
    launches: tuple[dict[str, Any], ...]
    counts: dict[str, Any]
    machine: str
    provenance: str
    stale: tuple[str, ...] = ()

    @property
    def point(self) -> tuple[str, str, str]:
        """As build.results has its points."""
        return self.direction, self.size, self.dtype

    @property
    def kernels(self) -> dict[str, dict[str, Any]]:
        """The first launch of each generated kernel, by name."""
        generated = sections(self.source) if not self.machine else functions(self.source)
        found: dict[str, dict[str, Any]] = {}
        for launch in self.launches:
            if launch["name"] in generated:
                found.setdefault(launch["name"], launch)
        return found

    @property
    def targets(self) -> tuple[str, ...]:
        """Those that the launches fit; a CPU is one of its own."""
        if not self.machine:
            return (CPU,)
        warps = max((launch["binary"]["options"]["num_warps"] for launch in self.kernels.values()), default=1)
        return tuple(name for name, target in TARGETS.items() if warps * target.warp_size <= THREADS)


@functools.cache
def functions(source: str) -> dict[str, tuple[int, int]]:
    """First and last line of each function in a Python file, with its decorators."""
    nodes = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    first = {n.name: min([n.lineno, *(decorator.lineno for decorator in n.decorator_list)]) for n in nodes}
    return {n.name: (first[n.name], n.end_lineno or n.lineno) for n in nodes}


def sections(source: str) -> dict[str, str]:
    """C++ kernels by the name in the comment over each."""
    _, *parts = re.split(r"^// (\w+)\n", source, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


# ---- where it comes from --------------------------------------------------------------------------------------------


def captured(captures: Captures) -> list[Graph]:
    """The graphs whose captures are stored.

    Raises:
        PublishError: one of them lacks a part, or its parts do not fit together.
    """
    printed = captures.files.get((SCRIPT, "cuda"))
    titles = dict.fromkeys(section.partition(",")[0] for section in printed.contents) if printed else {}
    return [_captured(captures, title) for title in titles]


def _captured(captures: Captures, title: str) -> Graph:
    parts = {part: captures.find(SCRIPT, f"{title}, {part}", "gpu") for part in PARTS}
    kernels = parts["kernels"]
    if len({(part.run.commit, part.run.machine["name"], part.run.software["torch"]) for part in parts.values()}) > 1:
        raise PublishError(f"output of {SCRIPT}: expected {title} of one run, got several: capture it again")
    stale = tuple(part.name for part in parts.values() if captures.is_stale(part))
    contents = {part: capture.content for part, capture in parts.items()}
    graph = _graph(title, contents, kernels.run.machine["name"], provenance_of(kernels.run, stale), stale)
    undescribed = [kernel for kernel, launch in graph.kernels.items() if "signature" not in launch["binary"]]
    if undescribed or not graph.kernels:
        raise PublishError(f"output of {SCRIPT}: expected a launch of each kernel of {title}, got none that says how")
    return graph


def provenance_of(run: Run, stale: Iterable[str]) -> str:
    """Where a capture was printed, and that it was with other code."""
    software = f"torch {run.software['torch']} and Triton {run.software.get('triton', 'unknown')}"
    seen = f"Captured on {run.machine['name']} with {software}, {run.date[:10]}, by {run.command}"
    again = f"compiled again for each target with Triton {triton.__version__}"
    changed = " This capture is stale: the code that printed it has changed since." if list(stale) else ""
    return f"{seen}; {again}.{changed}"


def _graph(title: str, parts: Mapping[str, str], machine: str, provenance: str, stale: tuple[str, ...] = ()) -> Graph:
    function, _, direction = title.partition(" ")
    try:
        counts = json.loads(parts["counts"])
        launches = tuple(json.loads(line) for line in parts["launches"].splitlines() if line)
        text = "\n".join([*printing.fitted(parts["graph"]), ""])
        graph = Graph(
            function, direction, counts["shape"], counts["dtype"], text, parts["kernels"], launches, counts, machine,
            provenance, stale,
        )  # fmt: skip
        if len(graph.kernels) != counts["kernels"]:
            raise ValueError(f"{counts['kernels']} kernels, of which {len(graph.kernels)} are launched")
    except (ValueError, KeyError, SyntaxError) as error:
        problem = f"{type(error).__name__} {error}".strip()
        raise PublishError(
            f"{title}: expected a graph, its kernels and launches as {MODULE} prints them, got {problem}"
        ) from error
    return graph


def fresh(root: Path = ROOT) -> list[Graph]:
    """The graphs with C++ kernels, made on this machine's CPU; kept until the snippet, torch or Python changes.

    Raises:
        PublishError: the snippet fails, such as where there is no C++ compiler.
    """
    texts = [(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")) for path in built_from(root)]
    made_by = digest_texts(texts), torch.__version__, sys.version, platform.machine()
    path = root / FOLDER / f"cpu-{kept.key(*made_by)}.json"
    if not path.exists():
        for old in path.parent.glob("cpu-*.json"):
            old.unlink()
        kept.write(path, json.dumps(_made()))
    made = f"Made when this site was built, with torch {torch.__version__} on a CPU, by python -m {MODULE}"
    scalar = "without vector instructions, in which CPUs differ"
    provenance = f"{made}, {scalar}; casts of indices are left out."
    graphs = json.loads(path.read_text(encoding="utf-8"))
    return [_graph(title, parts, "", provenance) for title, parts in graphs.items()]


def built_from(root: Path) -> list[Path]:
    """The files by which C++ is made."""
    return sorted({*reached(root, [root / printing.source_of(SCRIPT)]), root / "tests" / "benchmarks" / "captures.py"})


def _made() -> dict[str, dict[str, str]]:
    """What the snippet prints here, by graph and part."""
    try:
        printed = printing.printed(SCRIPT, CPU)
    except RuntimeError as error:
        raise PublishError(f"Inductor's C++ cannot be made here: {error}") from error
    graphs: dict[str, dict[str, str]] = {}
    for section, content in printed.items():
        title, _, part = section.partition(", ")
        graphs.setdefault(title, {})[part] = content
    return graphs


def mark(graphs: Iterable[Graph], page: Evidence) -> None:
    """Say on a page which captures are stale: a release then refuses it."""
    page.stale += [f"output of {name}" for graph in graphs for name in graph.stale]


# ---- compiled again -------------------------------------------------------------------------------------------------


def file_of(graph: Graph) -> Path:
    """Where its Triton kernels are, to be compiled; relative to the root."""
    return FOLDER / f"inductor_{graph.function}_{graph.direction}_{graph.size}.py"


def compilations(graph: Graph, target: str, root: Path = ROOT) -> list[Compilation]:
    """What the launcher of each of its Triton kernels would compile for a target, with the options that it chose.

    To be called where Triton does not interpret.

    Raises:
        PublishError: a launch does not fit its kernel.
    """
    path = file_of(graph)
    if not (root / path).exists() or (root / path).read_text(encoding="utf-8") != graph.source:
        kept.write(root / path, graph.source)  # once: another process may read it
    found = []
    for name, launch in graph.kernels.items():
        try:
            kernel = compiled_code.load(f"{root / path}:{name}")
            source = compiled_code.source_of(kernel, launch["binary"]["signature"])
        except compiled_code.Refused as error:
            raise PublishError(f"{graph.function} {graph.direction}, captured: {error}") from error
        options = launch["binary"]["options"]
        usual = Compilation(
            f"{path}:{name}", source.signature, source.constants, source.attrs, options, target, listed=True
        )
        found.append(usual.keyed(kernel))
    return found


def wanted(graphs: Iterable[Graph], root: Path = ROOT) -> Iterator[tuple[Point, str, list[Pair]]]:
    """(point, target, compilations) of captured graphs, as those of kernel files are planned.

    Raises:
        PublishError: two graphs have the same point, by which their results are found.
    """
    taken: dict[tuple[str, str, str], Graph] = {}
    for graph in graphs:
        if (other := taken.setdefault(graph.point, graph)) is not graph:
            both = f"{other.function} and {graph.function}"
            raise PublishError(f"captures of Inductor: expected one graph at {graph.point}, got those of {both}")
        shape = dict(zip(("rows", "columns"), map(int, graph.size.split("x")), strict=True))
        for target in graph.targets:
            pairs: list[Pair] = [(compilation, None) for compilation in compilations(graph, target, root)]
            yield Point(shape, graph.dtype, graph.direction), target, pairs


def digest(graphs: Iterable[Graph]) -> str:
    """What a compilation of captured graphs depends on, beside the tools."""
    return kept.key(Path(__file__).read_text(), *((graph.point, graph.source, graph.launches) for graph in graphs))


# ---- for the viewer -------------------------------------------------------------------------------------------------


def files(graph: Graph, folder: str) -> dict[str, str]:
    """The listings that do not depend on a target, by path: the graph, and the kernels' source."""
    listings = {f"{folder}/inductor.graph.txt": graph.text}
    if graph.machine:
        return listings | {f"{folder}/inductor.py.txt": graph.source}
    return listings | {f"{folder}/{name}.cpp.txt": source for name, source in sections(graph.source).items()}


def entries(
    graph: Graph, folder: str, shown: Mapping[str, Mapping[str, Mapping[str, Any]]] | None = None
) -> list[dict]:
    """The graph's kernels as index.json has them.

    Args:
        folder: of the configuration; paths are those of `files`.
        shown: by kernel and target, the entry of what a Triton kernel became: options, values, bad, notes, forms.
            Targets without one are left out. C++ needs none.
    """
    found = []
    for name, launch in graph.kernels.items():
        if graph.machine:
            first, last = functions(graph.source)[name]
            source = {"form": "triton", "url": f"{folder}/inductor.py.txt", "line": first, "last": last}
            forms = {"graph": f"{folder}/inductor.graph.txt"}
            targets = {target: made for target, made in (shown or {}).get(name, {}).items() if target in graph.targets}
        else:
            source = {
                "form": "graph", "url": f"{folder}/inductor.graph.txt", "line": 1, "last": graph.text.count("\n"),
            }  # fmt: skip
            forms = {"cpp": f"{folder}/{name}.cpp.txt"}
            targets = {CPU: {"options": "C++ with OpenMP"}}
        found.append(
            {
                "name": name,
                "maker": MAKER,
                "source": source,
                "provenance": graph.provenance,
                "targets": {
                    target: {
                        **made,
                        "values": {**made.get("values", {}), **values(graph, launch)},
                        "bad": list(made.get("bad", [])),
                        "notes": [*made.get("notes", []), *notes(graph, launch, target)],
                        "forms": {**forms, **made.get("forms", {})},
                    }
                    for target, made in targets.items()
                },
            }
        )
    return found


def values(graph: Graph, launch: Mapping[str, Any]) -> dict[str, str]:
    """The facts of `FACTS`."""
    return {"launches": str(graph.counts["launches"]), "bytes": units.text(launch["bytes"], "B")}


def notes(graph: Graph, launch: Mapping[str, Any], target: str) -> list[str]:
    """What the graph's other launches are, what moves, and which binary ran."""
    generated = list(graph.kernels)
    library = [launch["name"] for launch in graph.launches if launch["name"] not in generated]
    ours = f"{len(generated)} generated kernel{'s' if len(generated) > 1 else ''}"
    others = f" and PyTorch's own {', '.join(library)}" if library else ""
    counted, passed = (units.text(graph.counts[name], "B") for name in ("bytes", "passed"))
    found = [
        f"The {graph.direction} runs {ours}{others}.",
        f"Inductor counts {counted} for the graph; the tensors that its launches get add up to {passed}.",
    ]
    binary = launch["binary"]
    if not binary:
        return found
    configuration = ", ".join(f"{name} {value}" for name, value in binary["constants"].items() if name.isupper())
    tried = f"the fastest of {binary['tried']} that Inductor tried" if binary["tried"] > 1 else "the only one tried"
    warps = binary["options"]["num_warps"]
    chosen = f"On {graph.machine} Inductor chose {configuration}, {warps} warp{'s' if warps > 1 else ''}: {tried}."
    if target != target_of(graph.machine):
        return [*found, f"{chosen} On this GPU it might choose otherwise, and write other code."]
    if binary["registers"] is not None:
        spilled = f"{binary['spilled']} bytes of spills" if binary["spilled"] else "no spills"
        chosen += f" The binary that ran there has {binary['registers']} registers and {spilled}."
    return [*found, chosen]


def target_of(machine: str) -> str | None:
    """The target that a GPU is, by its name: sm_90 of "NVIDIA H200"."""
    return next((target for name, target in GPUS.items() if name in machine), None)

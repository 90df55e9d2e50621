"""A tiny project in a temporary folder: one case with its sources, records of it, and a site of a page or two."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from docs.publish.compiled import explorer
from docs.publish.macros.catalogue import Macros
from docs.publish.macros.page import Page
from docs.publish.macros.render import render
from docs.publish.place import Place
from docs.publish.records.captures import Captures
from docs.publish.records.schema import Record
from docs.publish.records.store import Store
from tests.benchmarks import captures
from tests.benchmarks.captures import module_of, source_of
from tests.benchmarks.functions import Code
from tests.benchmarks.reviewed import VERSION
from tests.benchmarks.source import ROOT

KERNEL, CASE = "kernels/add.py", "tests/benchmarks/kernels/add.py"
SCRIPT = "kernels/add"  # as captures name snippets/kernels/add.py
ADD = "def add(a, b):\n    return a + b\n"
FILES = {
    KERNEL: "# SPDX-License-Identifier: MIT\n" + f"# --8<-- [start:add]\n{ADD}# --8<-- [end:add]\n",
    CASE: """from tests.benchmarks.case import Case, Point


def add(*given):
    from kernels.add import add

    return add(*given)


def points(device):
    narrow, wide = {"rows": 8, "columns": 4}, {"rows": 8, "columns": 8}
    yield Point(narrow, "bfloat16", name="small")
    yield Point(narrow, "bfloat16", "backward", name="small backward")
    yield Point(wide, "bfloat16", "backward", name="wide backward")
    yield Point(wide, "bfloat16", modes=("calls", "device"), name="calls")


CASE = Case(points=points, prepare=add, question='Is it fast?')
""",
    source_of(SCRIPT): "if __name__ == '__main__':\n    from kernels.add import add\n    print(add(1, 2))\n",
}
TIMING = {"p20": 0.9e-3, "p50": 1e-3, "p80": 1.2e-3, "samples": 100}
CEILING = {"rate": 4e12, "by": "Tensor.copy_", "time": TIMING}
H100 = {  # of a name that no datasheet has: it may be as fast as it likes
    "slug": "nvidia-h100-80gb-hbm3", "name": "NVIDIA H100", "kind": "gpu", "memory_bytes": 150_000_000_000,
    "units": 132, "l2_bytes": 60_000_000, "driver": "580", "power_limit_w": 700.0,
    "before": {"temperature_c": 31.0}, "after": {},
}  # fmt: skip
LAPTOP = H100 | {"slug": "laptop", "name": "A laptop", "kind": "cpu"}
MKDOCS = """site_name: tiny
site_url: https://example.org/tiny/
docs_dir: docs/pages
hooks: [{hooks}]
theme: {{name: null, custom_dir: theme}}
markdown_extensions:
  - md_in_html
  - admonition
  - pymdownx.details
  - pymdownx.superfences
  - pymdownx.snippets: {{base_path: ["{root}"], check_paths: true}}
"""


def project(root: Path, page: str = "# Page\n") -> Path:
    """Write the project: sources, settings, a theme that shows the content alone, and one page."""
    settings = MKDOCS.format(hooks=ROOT / "docs" / "publish" / "site" / "hooks.py", root=root)
    pages = {"mkdocs.yml": settings, "theme/main.html": "{{ page.content }}", "docs/pages/index.md": page}
    card = {"theme/partials/card.html": '<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>'}
    for name, text in (FILES | pages | card).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def row(root: Path, **changed: Any) -> dict[str, Any]:
    """A row of the case: 1 GB read and 1 GB written in a millisecond, so 2 TB/s and half of the ceiling."""
    return {
        "case": "kernels/add", "direction": "forward", "part": "", "shape": {"rows": 8, "columns": 4},
        "dtype": "bfloat16", "variant": "ours", "mode": "device", "time": TIMING, "bytes_read": 10**9,
        "bytes_written": 10**9, "flops": 10**9, "mix": "copy", "peak_memory_bytes": 10**6, "kernels": 1,
        "error": {"value": 1e-3, "bound": 2e-3}, "build_seconds": 2.5, "built_cold": True, "binaries": [],
        "sources": sources(root),
    } | changed  # fmt: skip


def took(milliseconds: float) -> dict[str, Any]:
    """The time of a row."""
    return TIMING | {name: round(TIMING[name] * milliseconds, 12) for name in ("p20", "p50", "p80")}


def sources(root: Path) -> dict[str, Any]:
    """What a row says of the code as it is."""
    return {"hash": Code.of(root).measured(CASE).hash, "files": [KERNEL, CASE], "method": VERSION}


def record(root: Path, rows: list[dict] | None = None, day: int = 1, **changed: Any) -> dict[str, Any]:
    """A run of the case on an H100: two variants at one shape."""
    matrix = {"burst": CEILING | {"rate": 8e14}, "sustained": CEILING | {"rate": 6e14}}
    return {
        "schema": 1, "id": f"2026-01-{day:02}T00-00-00Z-nvidia-h100-80gb-hbm3", "date": f"2026-01-{day:02}T00:00:00Z",
        "command": "python -m tests.benchmarks kernels/add", "commit": "c" * 40, "dirty": False, "machine": H100,
        "software": {"python": "3.12.3", "torch": "2.11.0"},
        "ceilings": {"bandwidth": {"copy": CEILING}, "matrix": {"bfloat16": matrix}}, "floor": took(0.002),
        "rows": [row(root), row(root, variant="eager", time=took(2))] if rows is None else rows, "failures": [],
    } | changed  # fmt: skip


def printed(root: Path, sections: Mapping[str, str], script: str = SCRIPT, device: str = "cuda", **run: Any) -> Path:
    """Write what a script printed; returns the file. It is of today's code, unless `run` has other sources."""
    fresh = Code.of(root).printed(source_of(script)).hash
    known = {
        "commit": "c" * 40, "date": "2026-01-01T00:00:00Z", "command": f"python -m {module_of(script)}",
        "environment": {}, "machine": {"name": "NVIDIA H100"}, "software": {"torch": "2.11.0"}, "sources": fresh,
    } | run  # fmt: skip
    parts = [{"section": section, "run": 0, "content": content} for section, content in sections.items()]
    document = {"schema": captures.SCHEMA, "script": script, "device": device, "runs": [known], "sections": parts}
    return write(root, document, "captures", f"{script}.{device}")


def write(root: Path, content: Mapping[str, Any], folder: str = "runs", name: str | None = None) -> Path:
    """Write a record below docs/measurements; returns its file."""
    path = root / "docs" / "measurements" / folder / f"{name or content['id']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def store(root: Path, *records: Mapping[str, Any]) -> Store:
    """Write these records, and load all."""
    for content in records:
        write(root, content)
    return Store.load(root / "docs/measurements", root)


def read(root: Path, *records: Mapping[str, Any]) -> Store:
    """These records alone, without files."""
    return Store([Record.model_validate_json(json.dumps(content)) for content in records], root=root)


def macros(root: Path, path: str = "kernels/add.md", **page: Any) -> tuple[Macros, Page]:
    """The macros of a page, on what is written; of the case, if no other is named."""
    found = Page(Place(path, path.removesuffix(".md") + "/"), **{"case": "kernels/add"} | page)
    return Macros(store(root), Captures.load(root / "docs/measurements/captures", root), found, root), found


def rendered(text: str, root: Path, line: int = 1, **page: Any) -> tuple[str, Page]:
    """A page's text with its macros rendered; `page` as for `macros`."""
    known, found = macros(root, **page)
    return render(text, known, found, line), found


def finished(text: str, root: Path) -> str:
    """The same with its charts and tables in their places."""
    shown, page = rendered(f"{text}\n", root)
    return page.finish(shown)


def build(root: Path) -> dict[str, str]:
    """Build the site; returns its pages, kernel files and exports by path.

    The compiled code of our own kernels is left out: tests/pages/test_compiled.py is about it.

    Raises:
        mkdocs.exceptions.Abort: the build failed; what it said is in the log.
    """
    from mkdocs.commands.build import build as build_site
    from mkdocs.config import load_config

    with mock.patch.object(explorer, "files", return_value=iter(())):
        build_site(load_config(str(root / "mkdocs.yml"), site_dir=str(root / "site")))
    site = root / "site"
    shown = {".html", ".py", ".json", ".csv"}
    return {path.relative_to(site).as_posix(): path.read_text() for path in site.rglob("*") if path.suffix in shown}

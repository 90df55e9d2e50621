"""Notebooks: percent scripts in docs/pages/notebooks, executed by `python -m docs.publish.site.notebooks`.

What was executed is kept. A notebook runs again when its text, a file of ours that it imports, a version or the device
has changed.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from docs.publish import kept
from docs.publish.errors import PublishError
from tests.benchmarks import imports
from tests.benchmarks.source import ROOT

FOLDER = Path("docs/pages/notebooks")
CACHE = Path(".cache/notebooks")
LINKED = re.compile(r'href=\\"\.\./experiments/([\w/.-]+)')  # in an output, which stands in JSON
EXPERIMENTS = Path("docs/measurements/local/experiments")  # what notebooks leave for the reader to open, a folder each
SECONDS = 600  # for one cell, on a slow machine


def sources(root: Path = ROOT) -> list[Path]:
    """The notebooks' scripts."""
    return sorted((root / FOLDER).glob("*.py"))


def executed(source: Path, root: Path = ROOT) -> Path:
    """Where the executed notebook lies, if it was executed: at the page's path below the cache."""
    return root / CACHE / "notebooks" / f"{source.stem}.ipynb"


def front_matter(source: Path) -> dict[str, Any]:
    """The page's front matter: what the script's header has under `ridgepoint`."""
    return dict(jupytext.read(source).metadata.get("ridgepoint", {}))


def key(source: Path, root: Path = ROOT) -> str:
    """What the outputs depend on: the notebook, the code that it imports, the versions and the device."""
    import torch
    import triton

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    parts = [path.read_bytes() for path in (source, *sorted(imports.files(source, root)))]
    return kept.key(parts, sys.version, torch.__version__, triton.__version__, device)


def is_fresh(source: Path, root: Path = ROOT) -> bool:
    """Whether the executed notebook is what an execution would give now."""
    path = executed(source, root)
    try:
        known = json.loads(path.read_text(encoding="utf-8"))["metadata"]["ridgepoint"]
        return known["key"] == key(source, root) and all(
            (root / EXPERIMENTS / name).exists() for name in known["files"]
        )
    except (OSError, ValueError, KeyError):
        return False


def run(source: Path, root: Path = ROOT) -> nbformat.NotebookNode:
    """Execute a notebook from the root of the checkout, showing how far it is.

    Raises:
        PublishError: a cell fails; names the notebook, the cell's first line and the error.
    """
    notebook = jupytext.read(source)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    client = NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": root}})
    with client.setup_kernel(env=os.environ | {"PYTHONPATH": str(root)}):
        for number, cell in enumerate(cells, 1):
            first = next(iter(cell.source.splitlines()), "")
            print(f"{source.name}: cell {number}/{len(cells)}: {first}", file=sys.stderr, flush=True)
            try:
                client.execute_cell(cell, notebook.cells.index(cell))
            except CellExecutionError as error:
                raise PublishError(f"{source.name}: cell {number}, {first!r}: {error.ename}: {error.evalue}") from error
    return notebook


def keep(notebook: nbformat.NotebookNode, source: Path, root: Path = ROOT) -> Path:
    """Write an executed notebook, with what its outputs depend on; returns the file."""
    links = LINKED.findall(nbformat.writes(notebook))
    notebook.metadata.setdefault("ridgepoint", {}).update(key=key(source, root), files=links)
    path = executed(source, root)
    kept.write(path, nbformat.writes(notebook) + "\n")
    return path


def for_the_site(root: Path = ROOT) -> Iterator[tuple[Path, Path]]:
    """(script, notebook) of each: executed, as it was last executed, or else without outputs."""
    for source in sources(root):
        path = executed(source, root)
        if not path.exists():
            kept.write(path, nbformat.writes(jupytext.read(source)) + "\n")
        yield source, path


def main() -> int:
    """Execute the notebooks that have changed, side by side; returns the exit status."""
    changed = [source for source in sources() if not is_fresh(source)]
    failed = False
    with ThreadPoolExecutor() as pool:  # each starts a process
        running = {pool.submit(run, source): source for source in changed}
        for done in as_completed(running):
            try:  # in this thread: two that parse Python at once may get a SystemError (python/cpython#106905)
                keep(done.result(), running[done])
            except PublishError as error:
                failed = True
                print(error, file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

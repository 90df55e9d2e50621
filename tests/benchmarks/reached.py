"""What a file of ours reaches: what it imports, within functions too, the files that its strings name, and so on.

The tests are remembered by what they reach (tests/remembered.py), and what a GPU printed is stale once what its script
reaches has changed (tests/benchmarks/captures.py).
"""

import ast
import functools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.benchmarks.imports import imported

OURS = ("kernels", "snippets", "tests", "docs", "noxfile")
MADE = {".cache", ".git", ".nox", ".venv", "__pycache__", "local", "site-packages"}  # local: below docs/measurements
MACHINES = ("docs", "publish"), ("tests", "benchmarks")  # most tests of these give them tiny folders to work on
OWN = ("docs", "pages"), ("snippets",), ("tests", "benchmarks")  # what each page has of its own
SPEAKING = {  # their strings name files
    ("docs",), ("kernels",), ("snippets",),
    *(("tests", folder) for folder in ("benchmarks", "exercises", "kernels", "pages", "snippets")),
}  # fmt: skip


def reached(root: Path, files: Iterable[Path]) -> set[Path]:
    """The files, and all that can be reached from them by imports and by names of files.

    A test in a folder that is named counts, and not what it reaches in turn: whoever looks through a folder may read
    tests, and imports none.
    """
    found: set[Path] = set()
    read: set[Path] = set()
    waiting = [file for file in files if file.is_file()]
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            named_files, folders = named(root, file)
            waiting += named_files
            for path in {path for folder in folders for path in below(folder)}:
                (read.add if path.name.startswith("test_") else waiting.append)(path)
    return found | read


@functools.cache
def named(root: Path, file: Path) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """The files and the folders that a file of ours imports, with the packages, or that its strings name."""
    if file.suffix != ".py":
        return (), ()
    named = {Path(os.path.normpath(name)) for name in named_by_code(root, file)}
    paths = [path for path in named if is_ours(root, path)]
    folders: Iterable[Path] = filter(Path.is_dir, paths)
    if within(root, file, MACHINES) and not file.name.startswith("test_"):  # a test of the real folders names them
        folders = (path for path in folders if not holds_own(root, path))
    return tuple(filter(Path.is_file, paths)), tuple(folders)


def within(root: Path, path: Path, folders: Iterable[tuple[str, ...]]) -> bool:
    return any(path.is_relative_to(root.joinpath(*parts)) for parts in folders)


def holds_own(root: Path, folder: Path) -> bool:
    """Whether what a page has of its own lies in a folder, or is one."""
    return within(root, folder, OWN) or any(root.joinpath(*parts).is_relative_to(folder) for parts in OWN)


def is_ours(root: Path, path: Path) -> bool:
    """Whether a path is one of the checkout, and not made here: neither built nor measured nor installed."""
    parts = path.relative_to(root).parts if path.is_relative_to(root) else ()
    return bool(parts) and parts[0] != "site" and not MADE & set(parts)


@functools.cache
def below(folder: Path) -> list[Path]:
    """The files of a folder, without those that were made here."""
    found: list[Path] = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in MADE]
        found += [Path(place, name) for name in files]
    return found


def named_by_code(root: Path, file: Path) -> Iterator[Path]:
    """Paths that may exist."""
    tree = ast.parse(file.read_bytes())
    settings = file.name == "conftest.py"  # what its functions import, the tests that need it name, too
    package = file.relative_to(root).parts[:-1]
    speaks = file.name.startswith("test_") or bool({package[:1], package[:2]} & SPEAKING)
    for each in imported(tree, ".".join(package), in_functions=not settings):
        for name in (each.module, each.path):
            yield from module(root, name.split("."))
    nodes = list(outside_of_functions(tree) if settings else ast.walk(tree))
    inner = {id(node.left) for node in nodes if isinstance(node, ast.BinOp)}  # the beginning of a longer chain
    for node in nodes:
        if speaks and isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from by_string(root, file, node.value)
        elif isinstance(node, ast.BinOp) and id(node) not in inner and (parts := chained(node)):
            yield from (root.joinpath(*parts), file.parent.joinpath(*parts))


def module(root: Path, parts: list[str]) -> Iterator[Path]:
    """A module of ours and its packages; whatever else has that name is none of ours."""
    if parts[0] in OURS:
        yield from (root.joinpath(*parts[:depth], "__init__.py") for depth in range(1, len(parts) + 1))
        yield root.joinpath(*parts).with_suffix(".py")


def by_string(root: Path, file: Path, text: str) -> Iterator[Path]:
    """What a string may name: a path from the root or from its file, a pattern of paths, a module."""
    if not 3 < len(text) < 200 or re.search(r"[\s:<>{}\\]", text):
        return
    if "*" in text:
        if text.startswith(OURS) and "/" in text:
            yield from root.glob(text)
    elif "/" in text or "." in text.strip("."):
        yield from (root / text.lstrip("/"), file.parent / text.lstrip("/"))
        if text.startswith(OURS) and "/" not in text:
            yield from module(root, text.split("."))


def chained(node: ast.BinOp) -> list[str]:
    """The strings that end a chain `folder / "a" / "b"`."""
    parts: list[str] = []
    left: ast.expr = node
    while isinstance(left, ast.BinOp) and isinstance(left.op, ast.Div):
        if not (isinstance(left.right, ast.Constant) and isinstance(left.right.value, str)):
            parts.clear()  # what follows an unknown name is found by nobody
        else:
            parts.insert(0, left.right.value.strip("/"))
        left = left.left
    if isinstance(left, ast.Name) and left.id == "tmp_path":  # pytest's, empty: whatever has this name there is new
        return []
    given = left.args if isinstance(left, ast.Call) else []  # Path("a")
    return [*(part.value for part in given if isinstance(part, ast.Constant) and isinstance(part.value, str)), *parts]


def outside_of_functions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from outside_of_functions(child)

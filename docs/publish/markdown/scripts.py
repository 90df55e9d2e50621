"""Files that pages embed, each as one script that runs alone: all that it uses of other files of ours is in it.

What a file imports from its neighbours is merged into it where that keeps the meaning. Where two files give one name
to two things, or a file starts itself once more, the script carries all files instead, and unpacks them when it runs.
"""

import ast
import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from docs.publish.kept import in_a_build
from docs.publish.markdown import markers
from docs.publish.markdown.fences import blocks_of
from docs.publish.place import SITE
from tests.benchmarks.imports import Import, imported, of_statement
from tests.benchmarks.source import ROOT

OURS = ("snippets", "kernels")
COMMAND = re.compile(r"python -m snippets\.(?:\w+\.)*(\w+)")
NAMED = re.compile(r"(?:snippets|kernels)/[\w/]+\.py")  # a file of ours, in a string
PLACE = {"__file__"}  # names and values by which a file finds its place among others
NAME = {"__spec__", "-m"}  # and starts one by its module's name
PROGRAM = re.compile(
    r"\b(?:__file__|__spec__|sys\.argv|argparse)\b|\nFILES = \{|\"-m\""
)  # starts itself, or is told what to do
START = 'if __name__ == "__main__":'
LONG = 120


class Entangled(Exception):
    """Files that cannot be merged into one without changing what they mean; the message says why."""


def served(path: str) -> str:
    """Where the script of a file is on the site: snippets/validation/timing.py is validation/timing.py."""
    return path.removeprefix("snippets/")


def package_of(path: str) -> str:
    """The package that a file is in, where its relative imports begin."""
    return path.rpartition("/")[0].replace("/", ".")


def as_notebook(path: str) -> str:
    """Where the notebook of a file is on the site: beside its script."""
    return f"{served(path).removesuffix('.py')}.ipynb"


def embedded(text: str, page: str) -> list[str]:
    """The Python files of ours that a page's blocks embed, in the page's order."""
    paths = (path for block in blocks_of(text, page) for path, _ in block.includes)
    return list(dict.fromkeys(path for path in paths if path.endswith(".py") and path.startswith(OURS)))


def offered(paths: Iterable[str], root: Path = ROOT) -> list[str]:
    """The files whose scripts a page offers: for a part, such as modes_table.py, modes.py where that uses it."""
    return list(dict.fromkeys(_whole(path, root) for path in paths))


@in_a_build
def _whole(path: str, root: Path) -> str:
    part = root / path
    if path.startswith("kernels/") or START in part.read_text(encoding="utf-8"):
        return path
    named = [file for file in part.parent.glob("*.py") if part.stem.startswith(f"{file.stem}_")]
    longest_first = sorted((file.relative_to(root).as_posix() for file in named), key=len, reverse=True)
    return next((file for file in longest_first if path in reached(file, root)), path)


@in_a_build
def script(path: str, root: Path = ROOT, site: str = SITE) -> str:
    """A file with all that it uses, to run as `python NAME.py` in any folder."""
    if path.startswith("kernels/"):  # these stand alone, and are served as they are
        return (root / path).read_text(encoding="utf-8")
    others = [Path(other).name for other in reached(path, root) if other != path]
    alone = Module(path, root)
    try:
        text = COMMAND.sub(r"python \1.py", merged(path, root) if others or has(alone.tree, NAME) else alone.text)
    except Entangled:
        text = carried(path, root)
    docstring, rest = _split(text)
    what = f" With what it uses of {listed(others)}." if others else ""
    return f"{docstring}\n# {site}{served(path)}, MIT licence.{what}\n\n{rest.lstrip()}"


def notebook(path: str, text: str) -> str:
    """A file's script as a Jupyter notebook: cell by cell, or, where it is a program, as a file that the notebook runs.

    A kernel is a file as well: the compiler of Triton reads its source there, and the reader imports it.
    """
    docstring = ast.get_docstring(ast.parse(text))
    if path.startswith("kernels/") or PROGRAM.search(text):
        name = Path(path).name
        start = f"import {Path(path).stem}" if path.startswith("kernels/") else f"%run {name}"
        parts = [("code", f"%%writefile {name}\n{text.rstrip()}"), ("code", start)]
    else:
        parts = [*paragraphs((_split(text)[1] if docstring else text).lstrip())]
    of_code: dict[str, Any] = {"execution_count": None, "outputs": []}
    cells = [
        {"cell_type": kind, "id": f"{number:03}", "metadata": {}, "source": source.splitlines(True)}
        | (of_code if kind == "code" else {})
        for number, (kind, source) in enumerate([("markdown", docstring or Path(path).name), *parts])
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    made = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(made, ensure_ascii=False, indent=1, sort_keys=True)


def paragraphs(text: str) -> Iterator[tuple[str, str]]:
    """("code", …) or, of comments alone, ("markdown", …): what blank lines divide that stand in no statement."""
    whole = {line for node in ast.parse(text).body for line in range(_first(node), (node.end_lineno or 0) + 1)}
    lines = text.splitlines()
    ends = [number for number, line in enumerate(lines, 1) if not line.strip() and number not in whole]
    for before, end in itertools.pairwise([0, *ends, len(lines) + 1]):
        if part := lines[before : end - 1]:
            if all(line.startswith("#") for line in part):
                yield "markdown", "\n".join(re.sub("^# ?", "", line) for line in part)
            else:
                yield "code", "\n".join(part)


# ---- what a file uses -----------------------------------------------------------------------------------------------


@dataclass
class Module:
    """A file of ours, and what of it is used: all, or some names."""

    path: str
    root: Path
    used: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.text, self.tree, self.binds = parsed(self.path, self.root)


@in_a_build
def parsed(path: str, root: Path) -> tuple[str, ast.Module, dict[str, ast.stmt]]:
    """A file's text without its markers, its tree, and the statement that gives each name a meaning."""
    text = markers.without((root / path).read_text(encoding="utf-8"))
    tree = ast.parse(text)
    return text, tree, {name: node for node in tree.body for name in bound(node)}


@in_a_build
def ours(path: str, root: Path, everywhere: bool = False) -> list[tuple[Import, str]]:
    """Each name that is imported of ours, or each at the top, with its file; of a whole module, that module's."""
    tree = parsed(path, root)[1]
    package = package_of(path)
    top = (each for node in tree.body for each in of_statement(node, package))
    found = imported(tree, package) if everywhere else top
    return [
        (each, file.relative_to(root).as_posix())
        for each in found
        if each.name and each.module.startswith(OURS)
        for file in each.files(root)
        if file.name != "__init__.py" or file.stat().st_size  # most packages have an empty one
    ]


class Seen(NamedTuple):
    """What stands in code."""

    names: set[str]
    strings: set[str]


@in_a_build
def seen(code: ast.AST) -> Seen:
    """What stands in a file or in a part of it; of a file, that of its statements."""
    found = Seen(set(), set())
    if isinstance(code, ast.Module):
        for statement in map(seen, code.body):
            found.names.update(statement.names)
            found.strings.update(statement.strings)
        return found
    for node in ast.walk(code):
        if isinstance(node, ast.Name):
            found.names.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.strings.add(node.value)
    return found


def bound(node: ast.stmt) -> set[str]:
    """The names that a statement gives a meaning to."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {each.bound for each in of_statement(node)}
    passing = [each.target for each in ast.walk(node) if isinstance(each, ast.comprehension)]
    for_a_moment = {part.id for target in passing for part in ast.walk(target) if isinstance(part, ast.Name)}
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    return names - for_a_moment


@in_a_build
def reached(path: str, root: Path = ROOT) -> list[str]:
    """A file and those of ours that it needs: all that it imports, or names in a string, with theirs."""
    found: dict[str, None] = {}
    waiting = [path]
    while waiting:
        module = Module(waiting.pop(), root)
        if module.path not in found:
            found[module.path] = None
            waiting += [other for _, other in ours(module.path, root, True)]
            if module.path == path and has(module.tree, NAME):
                named = [name for text in seen(module.tree).strings for name in NAMED.findall(text)]
                waiting += [name for name in named if (root / name).is_file()]
    return sorted(found)


def has(tree: ast.AST, wanted: set[str]) -> bool:
    """Whether one of these names or values stands in code."""
    found = seen(tree)
    return not (wanted.isdisjoint(found.names) and wanted.isdisjoint(found.strings))


# ---- several files merged into one ----------------------------------------------------------------------------------


def merged(path: str, root: Path = ROOT) -> str:
    """A file below what it uses of others; the imports of all stand at the top.

    Raises:
        Entangled: two files give one name to two things, or one imports, starts or looks up what a single file has not.
    """
    modules: dict[str, Module] = {}
    _use(path, None, modules, root)
    order = _ordered(path, modules)
    whole = modules[path]
    parts = [_part(modules[other]) for other in order if other != path]
    imports = [line for other in order for line in _imports(modules[other])]
    _refuse_clashes([modules[other] for other in order])
    docstring, _ = _split(whole.text)
    text = "\n".join([docstring, *_sorted(imports), "\n", *parts, _title(path), "\n", _body(whole)])
    return re.sub(r"\n{4,}", "\n\n\n", text)


def _use(path: str, names: set[str] | None, modules: dict[str, Module], root: Path) -> None:
    """Note what is used of a file, all if no names are given, and of those that it uses."""
    module = modules.setdefault(path, Module(path, root))
    if {*ours(path, root, True)} - {*ours(path, root)}:
        raise Entangled(f"{path} imports ours within a function")
    waiting = (set(module.binds) if names is None else names) - module.used
    if names is None and has(module.tree, PLACE | NAME):
        raise Entangled(f"{path} asks where it lies, or starts itself")
    while waiting:
        name = waiting.pop()
        node = module.binds.get(name)
        if node is None:
            raise Entangled(f"{path} has no {name}: it is a module")
        module.used.add(name)
        if has(node, PLACE | NAME):
            raise Entangled(f"{path}: {name} asks where it lies, or starts it")
        if not isinstance(node, ast.Import | ast.ImportFrom):
            waiting |= (seen(node).names & module.binds.keys()) - module.used
    wanted: dict[str, set[str]] = {}
    for each, other in ours(path, root):
        if each.bound != each.name:
            raise Entangled(f"{path} renames what it imports")
        if each.name in module.used:
            wanted.setdefault(other, set()).add(each.name)
    for other, its_names in wanted.items():
        _use(other, its_names, modules, root)


def _ordered(path: str, modules: Mapping[str, Module]) -> list[str]:
    """The files, each after those of which it uses anything."""
    order: list[str] = []
    for each, other in ours(path, modules[path].root):
        if each.name in modules[path].used:
            order += _ordered(other, modules)
    return list(dict.fromkeys([*order, path]))


def _part(module: Module) -> str:
    """What is used of a file, without its imports, each statement with the comments above it."""
    lines = module.text.splitlines()
    found = []
    for node in module.tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom) or not bound(node) & module.used:
            if _acts_on(node, module):
                raise Entangled(f"{module.path}:{node.lineno}: a statement that acts on what is used")
            continue
        if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign):
            raise Entangled(f"{module.path}:{node.lineno}: a statement that does more than to define")
        first = _first(node)
        while first > 1 and lines[first - 2].startswith("#"):
            first -= 1
        found.append("\n".join(lines[first - 1 : node.end_lineno]))
    return "\n\n\n".join([_title(f"of {module.path}"), *found, "\n"])


def _acts_on(node: ast.stmt, module: Module) -> bool:
    """Whether a statement does something to what is used, as `library.define(...)` or a decorator that registers."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        acting: list[ast.AST] = [*node.decorator_list]
    else:
        acting = [each for each in ast.walk(node) if isinstance(each, ast.Expr)]
    names = set().union(*(seen(each).names for each in acting)) & module.used
    return any(not isinstance(module.binds[name], ast.Import | ast.ImportFrom) for name in names)


def _body(module: Module) -> str:
    """All of a file but its docstring and its imports."""
    gone: set[int] = set()
    for node in module.tree.body:
        docstring = node is module.tree.body[0] and isinstance(node, ast.Expr)
        if docstring or isinstance(node, ast.Import | ast.ImportFrom):
            gone.update(range(node.lineno, (node.end_lineno or 0) + 1))
    lines = [line for number, line in enumerate(module.text.splitlines(), 1) if number not in gone]
    return "\n".join(lines).strip("\n") + "\n"


def _title(what: str) -> str:
    return f"{f'# ---- {what} ':-<{LONG - 1}}"


def _imports(module: Module) -> Iterator[tuple[str, str, str | None]]:
    """(module, name or "", alias) of what a file imports and uses, but for ours."""
    of_ours = {each for each, _ in ours(module.path, module.root)}
    package = package_of(module.path)
    for each in (each for node in module.tree.body for each in of_statement(node, package)):
        if each not in of_ours and each.bound in module.used:
            plain = each.name or each.module.partition(".")[0]
            yield each.module, each.name, None if each.bound == plain else each.bound


def _sorted(imports: list[tuple[str, str, str | None]]) -> list[str]:
    """Import statements, one for each module: the standard library's, a blank line, the others."""
    plain = sorted(
        {f"import {module}" + (f" as {alias}" if alias else "") for module, name, alias in imports if not name}
    )
    froms: dict[str, set[str]] = {}
    for module, name, alias in imports:
        if name:
            froms.setdefault(module, set()).add(f"{name} as {alias}" if alias else name)
    lines = [*plain, *(f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(froms.items()))]
    standard = [line for line in lines if re.split(r"[ .]", line)[1] in sys.stdlib_module_names]
    return [*standard, "", *(line for line in lines if line not in standard)]


def _refuse_clashes(modules: list[Module]) -> None:
    """Raises: Entangled: a name means two things."""
    meant: dict[str, object] = {}
    for module in modules:
        imported = {
            (alias or name or origin).partition(".")[0]: (origin if name or alias else origin.partition(".")[0], name)
            for origin, name, alias in _imports(module)
        }
        of_ours = {each.name for each, _ in ours(module.path, module.root)}
        for name in module.used - of_ours:
            meaning = imported.get(name, module.path)
            if meant.setdefault(name, meaning) != meaning:
                raise Entangled(f"{name} is one thing in {module.path} and another in {meant[name]}")


# ---- several files carried in one -----------------------------------------------------------------------------------

UNPACK = """{docstring}

import os
import subprocess
import sys
import tempfile
from pathlib import Path

FILES = {{
{files}}}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for name, text in FILES.items():
            file = Path(folder, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "{module}", *sys.argv[1:]]
        sys.exit(subprocess.run(command, env={{**os.environ, "PYTHONPATH": folder}}).returncode)
"""


def carried(path: str, root: Path = ROOT) -> str:
    """A script that holds a file and all that it needs, and runs the file where these are unpacked."""
    files = [path, *(other for other in reached(path, root) if other != path)]
    module = path.removesuffix(".py").replace("/", ".")
    texts = "".join(f'    "{name}": {_quoted(_carried(name, root))},\n' for name in files)
    docstring = COMMAND.sub(r"python \1.py", _split(Module(path, root).text)[0])
    return UNPACK.format(docstring=docstring, files=texts, module=module)


def _carried(path: str, root: Path) -> str:
    text = (root / path).read_text(encoding="utf-8")
    return text if path.startswith("kernels/") else markers.without(text)  # kernels as they are served


def _quoted(text: str) -> str:
    """A text as a literal that reads like the text, where Python has one for it."""
    plain = f"r'''{text}'''"
    return plain if "'''" not in text and not text.endswith(("\\", "'")) else repr(text)


# ---- text -----------------------------------------------------------------------------------------------------------


def _split(text: str) -> tuple[str, str]:
    """A file's docstring, as it is written, and the rest."""
    end = ast.parse(text).body[0].end_lineno
    lines = text.splitlines(keepends=True)
    return "".join(lines[:end]), "".join(lines[end:])


def _first(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def listed(names: list[str]) -> str:
    """ "a, b and c"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))

"""The components of the patterns at their levels: what each level gains over those below, and what it costs.

What components there are, with their shapes and levels, is read from the sources without running them: the list in
snippets/patterns/compare_levels.py, and the files that it names. The times are those of each page's case.
"""

import ast
import io
import re
import tokenize
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from docs.publish import evidence, markup, palette
from docs.publish.errors import PublishError, unknown
from docs.publish.evidence import Evidence
from docs.publish.kept import in_a_build
from docs.publish.place import machine_page
from docs.publish.records.measured import DIRECTIONS, Coordinates, Measured
from docs.publish.records.store import Store
from tests.benchmarks.imports import imported

TOOL = "snippets/patterns/compare_levels.py"
SHAPES = ("small", "typical", "large")
HOST = "small"  # the shape at which the host decides


@dataclass(frozen=True)
class Component:
    """What a snippet says of a component.

    Attributes:
        name: "layer_norm_gelu".
        case: of its page: "patterns/normalization".
        shapes: by name, as macros take them: "8192x4096".
        lines: lines of code by level.
    """

    name: str
    case: str
    shapes: dict[str, str]
    lines: dict[int, int]


def table(store: Store, page: Evidence, root: Path, names: list[str]) -> str:
    """A line for each level of each component that was measured (of some, if they are named), as HTML.

    Raises:
        PublishError: no component has such a name.
    """
    known = components(root)
    if missing := set(names) - {each.name for each in known}:
        raise unknown("ladder: component", missing.pop(), [each.name for each in known])
    rows, records = [], []
    for component in known:
        if names and component.name not in names:
            continue
        found = {shape: _levels(store, component, shape, "both", "device") for shape in SHAPES}
        if not any(found.values()):
            continue  # it waits for somebody with the GPU
        host = _levels(store, component, HOST, "forward", "calls")
        records += [row.record for levels in found.values() for row in levels.values()]
        link = markup.link(component.name, page.place.to(f"{component.case}/"))
        for level in sorted(component.lines):
            cells = [_gain(found[shape], level, page) for shape in SHAPES]
            build = found["typical"].get(level)
            shown = f"{link}, " if not names or len(names) > 1 else ""
            rows.append(("", [f"{shown}{escape(_named(level))}", *cells, str(component.lines[level]),
                              page.cell(host.get(level), "time"),
                              page.cell(build, "first")]))  # fmt: skip
    if not rows:
        return "<p>Not measured yet.</p>"
    head = ("", *SHAPES, "lines of code", "one small call", "first call")
    machine, crew = records[0].machine, max(record.crew for record in records)
    days = evidence.days(records)
    beside = f" First calls are of {crew} processes that built side by side, which takes longer." if crew else ""
    panel = markup.panel(
        what="Speedup of each version over the fastest one above it; the first has its time, a dash was not measured. "
        f"{DIRECTIONS['both'].capitalize()}, GPU time, cold cache. A small call is a forward, calls back to back",
        body=markup.table(head, rows),
        source=f"{markup.link(machine['name'], page.place.to(machine_page(machine['slug'])))}, {days}.{beside}",
    )
    return markup.panels([panel], "wide")


def _levels(store: Store, component: Component, shape: str, direction: str, mode: str) -> dict[int, Measured]:
    """The rows of a component at one of its shapes by level, but for those that a busy machine measured."""
    size, machine = f"{component.name} {component.shapes[shape]}", next(iter(store.machines))
    at = Coordinates(component.case, direction=direction, shape=size, mode=mode, machine=machine)
    rows = [row for row in store.select(at) if not row.busy]
    return {level: row for row in rows for level in component.lines if row.variant == f"level-{level}"}


def _named(level: int) -> str:
    """A level in a table: "0 as first written"."""
    return f"{level} {palette.label(f'level-{level}')}"


def _gain(levels: dict[int, Measured], level: int, page: Evidence) -> str:
    """The speedup of a level over the best of those below it; of the lowest its time."""
    if level not in levels:
        return markup.NONE
    below = [row for number, row in levels.items() if number < level]
    if not below:
        return page.cell(levels[level], "time")
    best = min(below, key=lambda row: row.time.p50)
    return page.cell(levels[level], "speedup", best.variant)


# ---- what the sources say -------------------------------------------------------------------------------------------


@in_a_build  # seven tables show them
def components(root: Path) -> list[Component]:
    """The components in the tool's order.

    Raises:
        PublishError: a file that the tool names has no such component.
    """
    listed: dict[str, str] = ast.literal_eval(_assigned(_parsed(root / TOOL), "COMPONENTS"))
    return [_component(root, name, snippet) for name, snippet in listed.items()]


def _component(root: Path, name: str, snippet: str) -> Component:
    path = root / "snippets" / "patterns" / f"{snippet}.py"
    for file in (path, *_beside(path, root)):
        tree = _parsed(file)
        assigned = [node.value for node in tree.body if isinstance(node, ast.Assign)]
        calls = [value for value in assigned if isinstance(value, ast.Call) and ast.unparse(value.func) == "Component"]
        for words in ({word.arg: word.value for word in call.keywords} for call in calls):
            if ast.literal_eval(words["name"]) == name:
                shapes = _literal(tree, words["shapes"])
                sizes = {shape: "x".join(map(str, size)) for shape, size in shapes.items()}
                levels = words["levels"]
                assert isinstance(levels, ast.Dict)
                lines = {
                    ast.literal_eval(level): lines_of(file, value, root)  # type: ignore[arg-type]
                    for level, value in zip(levels.keys, levels.values, strict=True)
                }
                return Component(name, f"patterns/{snippet.replace('_', '-')}", sizes, lines)
    raise PublishError(f"{path.relative_to(root)}: expected a component {name!r}, as {TOOL} lists it")


def _beside(path: Path, root: Path) -> list[Path]:
    """The files of the same page that a file imports: linear_experts.py of linear.py."""
    own = f"snippets.patterns.{path.stem}_"
    modules = dict.fromkeys(each.module for each in imported(_parsed(path)) if each.module.startswith(own))
    return [root / f"{module.replace('.', '/')}.py" for module in modules]


def lines_of(path: Path, expression: ast.expr, root: Path) -> int:
    """Lines of code of what makes a level: what it takes of its page's files, and whole files of kernels/.

    A call, such as that of the compiler, is a line as well. Comments, docstrings and blank lines are none.
    """
    functions: dict[str, tuple[ast.FunctionDef | ast.ClassDef, set[int]]] = {}
    files: dict[str, str] = {}
    for file in (path, *_beside(path, root)):
        tree, code = _parsed(file), _code(file)
        functions = {
            node.name: (node, code) for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)
        } | functions
        files = _kernels(tree) | files
    seen: set[str] = set()
    total, waiting = 0, [expression]
    while waiting:
        part: ast.AST = waiting.pop()
        for name in [node.id for node in ast.walk(part) if isinstance(node, ast.Name)]:
            if name in seen:
                continue
            seen.add(name)
            if name in functions:
                node, code = functions[name]
                total += sum(node.lineno <= line <= (node.end_lineno or 0) for line in code)
                waiting += node.body  # type: ignore[arg-type]
            elif name in files:
                total += len(_code(root / files[name])) + _cuda_lines(root / files[name])
    return total + any(isinstance(node, ast.Call) for node in ast.walk(expression))


def _kernels(tree: ast.Module) -> dict[str, str]:
    """The files of kernels/ that a file imports from, by the imported names."""
    found = (each for each in imported(tree) if each.name and each.module.startswith("kernels."))
    return {each.bound: f"{each.module.replace('.', '/')}.py" for each in found}


@in_a_build
def _code(path: Path) -> set[int]:
    """The lines of a Python file that hold code."""
    text = path.read_text(encoding="utf-8")
    nothing = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in nothing:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # a docstring
            found -= {*range(node.lineno, (node.end_lineno or 0) + 1)}
    return found


def _cuda_lines(path: Path) -> int:
    """Lines of the CUDA C++ beside a file that compiles it."""
    source = path.with_name(f"{path.stem.removesuffix('_cuda')}.cu")
    if not path.stem.endswith("_cuda") or not source.is_file():
        return 0
    text = re.sub(r"/\*.*?\*/", lambda comment: "\n" * comment[0].count("\n"), source.read_text(), flags=re.S)
    return sum(bool(line.partition("//")[0].strip()) for line in text.splitlines())


@in_a_build
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _assigned(tree: ast.Module, name: str) -> ast.expr:
    """What a name of a file is given."""
    return next(
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    )


def _literal(tree: ast.Module, value: ast.expr) -> Any:
    """What stands there, or in the name that stands there."""
    return ast.literal_eval(_assigned(tree, value.id) if isinstance(value, ast.Name) else value)

"""What Python files import, read from their syntax trees: the one reader that tests, records and pages share."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Import(NamedTuple):
    """One name that an import statement gives a meaning to: of `from a import b as c`, these are a, b and c.

    Attributes:
        module: in full, also of a relative import where the importing package is known.
        name: what is taken from the module; empty where the module itself is.
        bound: the name that the importing file has for it: of `import a.b`, it is "a".
    """

    line: int
    module: str
    name: str
    bound: str

    @property
    def path(self) -> str:
        """Module and name, with dots."""
        return f"{self.module}.{self.name}" if self.name else self.module

    def files(self, root: Path) -> Iterator[Path]:
        """The files below a root that it may read: the module's, and that of the name where it is a module."""
        for module in dict.fromkeys((self.module, self.path)):
            base = root / module.replace(".", "/")
            yield from (path for path in (base.with_name(f"{base.name}.py"), base / "__init__.py") if path.is_file())


def of_statement(node: ast.AST, package: str = "") -> Iterator[Import]:
    """What a statement imports; nothing if it is no import.

    Args:
        package: of the importing file, with dots: relative imports begin there.
    """
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(node.lineno, alias.name, "", alias.asname or alias.name.partition(".")[0])
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: 1 - node.level or None] if node.level else []
        module = ".".join([*above, *filter(None, [node.module])])
        for alias in node.names:
            yield Import(node.lineno, module, alias.name, alias.asname or alias.name)


def imported(tree: ast.AST, package: str = "", in_functions: bool = True) -> Iterator[Import]:
    """What a file imports, in its order; or what is imported when the file itself is, without its functions."""
    yield from of_statement(tree, package)
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):  # no statement stands in one
            continue
        if in_functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imported(node, package, in_functions)


def files(path: Path, root: Path) -> set[Path]:
    """The files below a root that a file imports, and those that these import."""
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        file = waiting.pop()
        package = ".".join(file.relative_to(root).parent.parts) if file.is_relative_to(root) else ""
        for each in imported(ast.parse(file.read_text(encoding="utf-8")), package):
            new = set(each.files(root)) - found
            found |= new
            waiting += new
    return found

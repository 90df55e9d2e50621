"""The hash that tells whether a recorded number still belongs to the code on the page.

It is taken over syntax trees without docstrings, so comments, formatting and prose do not count, and it does not
depend on the Python version (`ast.dump` does).
"""

import ast
import hashlib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMER = "snippets/validation/timing.py"


def digest(case_file: str, sources: Iterable[str], root: Path = ROOT) -> str:
    """Hash of a case file, the sources it measures and the timer (16 hexadecimal digits).

    Raises:
        FileNotFoundError: a file does not exist.
        SyntaxError: a file is not Python.
    """
    texts = [(name, (root / name).read_text()) for name in (case_file, *sources, TIMER)]
    return digest_texts(texts)


def digest_texts(texts: Iterable[tuple[str, str]]) -> str:
    """Hash of (name, Python source) pairs, in any order."""
    trees = [f"{name}:{canonical(ast.parse(text, name))}" for name, text in sorted(set(texts))]
    return hashlib.sha256("\n".join(trees).encode()).hexdigest()[:16]


def canonical(node: object) -> str:
    """A syntax tree as text: node names and non-empty fields, without docstrings and positions."""
    if isinstance(node, list):
        return "[" + ",".join(map(canonical, node)) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = dict(ast.iter_fields(node))
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and _has_docstring(node):
        fields["body"] = fields["body"][1:]
    fields.pop("ctx", None)
    fields.pop("kind", None)  # u"" prefixes
    shown = (f"{name}={canonical(value)}" for name, value in fields.items() if value not in (None, []))
    return f"{type(node).__name__}({','.join(shown)})"


def _has_docstring(node: ast.AST) -> bool:
    return ast.get_docstring(node, clean=False) is not None  # type: ignore[arg-type]

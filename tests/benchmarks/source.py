"""The hash of whole files: it says whether what a script printed, or a kernel that was tested, is of this code.

What a benchmark's rows reach is narrower (functions.py). The hash is of syntax trees without docstrings, in CUDA C++ of
tokens, so comments, formatting and prose do not count, and it does not depend on the Python version (`ast.dump` does).
Nor do LABELS, how the variants of a case are called and coloured.
"""

import ast
import hashlib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).resolve().parents[2]


def digest_texts(texts: Iterable[tuple[str, str]]) -> str:
    """Hash of (name, source) pairs, in any order."""
    trees = (_code(name, text) for name, text in sorted(set(texts)))
    return hashlib.sha256("\n".join(trees).encode()).hexdigest()[:16]


@cache  # many hashes are of the same files
def _code(name: str, text: str) -> str:
    """What counts of a file."""
    if name.endswith(".cu"):
        return f"{name}:{tokens(text)}"
    tree = ast.parse(text, name)
    tree.body = [
        node for node in tree.body if not (Path(name).parts[:2] == ("tests", "benchmarks") and _are_labels(node))
    ]
    return f"{name}:{canonical(tree)}"


def kernels(root: Path = ROOT) -> dict[str, str]:
    """The hash of each kernel's file by itself, by which a report of tests says what it tested."""
    files = sorted((root / "kernels").glob("[!_]*.py"))
    texts = {file: [(file.name, file.read_text(encoding="utf-8"))] for file in files}
    for file in files:
        source = file.with_name(f"{file.stem.removesuffix('_cuda')}.cu")
        if file.stem.endswith("_cuda"):
            texts[file].append((source.name, source.read_text(encoding="utf-8")))
    return {file.stem: digest_texts(both) for file, both in texts.items()}


def labels(path: Path) -> dict[str, dict[str, str]]:
    """The LABELS of a case file, by variant: {"better": {"label": "better design", "short": "better", "role": ...}}.

    Raises:
        ValueError: they are no literals.
    """
    found = [node.value for node in ast.parse(path.read_text(encoding="utf-8")).body if _are_labels(node)]
    try:
        return ast.literal_eval(found[0]) if found else {}
    except ValueError as error:
        raise ValueError(f"{path}: expected LABELS of literals, got {ast.unparse(found[0])}") from error


def _are_labels(node: ast.stmt) -> TypeGuard[ast.Assign]:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LABELS"


def question(path: Path) -> str:
    """What a case file's CASE asks; nothing where it is no literal."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "question" and isinstance(node.value, ast.Constant):
            return str(node.value.value)
    return ""


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


TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|^[ \t]*#.*?(?=//|\n|$)|\w+|\S', re.DOTALL | re.MULTILINE)


def tokens(text: str) -> str:
    """A CUDA C++ file without comments, a token beside the other; a line for the preprocessor stays one."""
    found = (token.group() for token in TOKEN.finditer(text) if not token.group().startswith(("//", "/*")))
    return " ".join(f"\n{' '.join(token.split())}\n" if token.lstrip().startswith("#") else token for token in found)


def _has_docstring(node: ast.AST) -> bool:
    return ast.get_docstring(node, clean=False) is not None  # type: ignore[arg-type]

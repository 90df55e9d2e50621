"""The hash of whole files: it says whether what a script printed, or a kernel that was tested, is of this code.

What a benchmark's rows reach is narrower (functions.py). The hash is of syntax trees without docstrings, in CUDA C++ of
tokens, so comments, formatting and prose do not count, and it does not depend on the Python version (`ast.dump` does).
What a case file says for readers and for tests does not count either: LABELS, how its variants are called and coloured.
Nothing that is measured depends on them. So that nothing else can be there, they are left out only if they are literals
that are assigned once, and that the file does not name again.
"""

import ast
import hashlib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Of a case file. By variant: {"better": {"label": "better design", "short": "better", "role": ...}}
LABELS = "LABELS"
UNMEASURED = (LABELS,)


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
    stated = any(word in text for word in UNMEASURED)
    return f"{name}:{canonical(_measured(tree) if stated else tree)}"


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
    """The LABELS of a case file, by variant; empty if it has none.

    Raises:
        ValueError: they are no literals, or used for something else.
    """
    return _stated(path, LABELS)


def _stated(path: Path, name: str) -> dict:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if (assignment := _unmeasured(tree, name)) is not None:
        return ast.literal_eval(assignment.value)
    if any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree)):
        raise ValueError(f"{path}: expected one {name} of literals beside CASE, which nothing in the file uses")
    return {}


def question(path: Path) -> str:
    """What a case file's CASE asks; nothing where it is no literal."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "question" and isinstance(node.value, ast.Constant):
            return str(node.value.value)
    return ""


def _measured(tree: ast.Module) -> ast.Module:
    """A file's tree without what it says for readers and for tests."""
    left_out = [_unmeasured(tree, name) for name in UNMEASURED]
    tree.body = [node for node in tree.body if node not in left_out]
    return tree


def _unmeasured(tree: ast.Module, name: str) -> ast.Assign | None:
    """The assignment of one of UNMEASURED in a case file; None where it may hold more than that."""
    assigned = {" = ".join(map(ast.unparse, node.targets)): node for node in tree.body if isinstance(node, ast.Assign)}
    uses = sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))
    if name not in assigned or "CASE" not in assigned or uses > 1:
        return None
    try:
        ast.literal_eval(assigned[name].value)
    except ValueError:
        return None
    return assigned[name]


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

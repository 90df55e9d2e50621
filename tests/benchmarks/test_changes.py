"""Ten changes of each kind and more, in memory: no row is stale for what no program does, and exactly its rows are for
an operation.

What no program does is changed at every place at once. Operations are changed one by one, each in another file.
"""

import ast
import random
import re
from collections.abc import Callable, Collection, Iterator
from functools import partial

import pytest

from tests.benchmarks.functions import ALTERNATIVES, METHOD, OURS, Code
from tests.benchmarks.reviewed import VERSION, version
from tests.benchmarks.test_functions import CASES, Texts, stale, texts

READ = "tests/benchmarks", "snippets/**/*.py"  # by what finds the cases

Edit = tuple[int, int, int, str]  # on this line, from this byte to that one, a text
Kind = Callable[[ast.Module, str], Iterator[Edit]]
NAMES = ("CASE", "prepare", "points", *(name for _, name in (*METHOD, *ALTERNATIVES)))  # where a search begins
OPERATORS = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.Div: ("/", "*")}


@pytest.fixture(scope="module")
def asked() -> dict[str, set[str]]:
    """By function, the cases whose rows list it."""
    code, found = Code(texts()), dict[str, set[str]]()
    for name, file in CASES.items():
        for function in code.measured(file).functions:
            found.setdefault(function, set()).add(name)
    return found


def comments(tree: ast.Module, text: str) -> Iterator[Edit]:
    """Above every statement that begins its line."""
    decorated = {node.lineno for node in ast.walk(tree) if getattr(node, "decorator_list", ())}
    lines = text.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and node.lineno not in decorated:
            before = lines[node.lineno - 1][: node.col_offset]
            if not before.strip():
                yield node.lineno, 0, 0, f"{before}# why\n"


def docstrings(tree: ast.Module, text: str) -> Iterator[Edit]:
    """Each with one more word."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.col_offset + 3, node.col_offset + 3, "More: "


def messages(tree: ast.Module, text: str) -> Iterator[Edit]:
    """Of errors, assertions and warnings: each text that begins with a quote of its own has one more word."""
    lines = [line.encode() for line in text.splitlines()]
    for node in ast.walk(tree):
        given = [node.msg] if isinstance(node, ast.Assert) and node.msg else []
        if isinstance(node, ast.Call) and re.fullmatch(r"\w*Error|warnings\.warn|report", ast.unparse(node.func)):
            given = [*node.args]
        for each in given:
            for part in [*getattr(each, "values", ()), each]:
                opened = lines[part.lineno - 1][part.col_offset :].decode()
                if isinstance(part, ast.Constant | ast.JoinedStr) and (quote := re.match(r'f?"(?!")', opened)):
                    yield part.lineno, part.col_offset + quote.end(), part.col_offset + quote.end(), "more: "
                    break


def unused_fields(tree: ast.Module, text: str) -> Iterator[Edit]:
    """At the end of each class that is no tuple: of one, whoever unpacks it meets them all."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and "NamedTuple" not in map(ast.unparse, node.bases):
            fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
            if fields:
                line = (fields[-1].end_lineno or 0) + 1
                yield line, 0, 0, f'{" " * fields[-1].col_offset}nobody_asks: str = ""\n'


def edited(text: str, edits: Collection[Edit]) -> str:
    """A text with the edits, the last ones first."""
    lines = [line.encode() for line in [*text.splitlines(keepends=True), "\n"]]
    for line, begin, end, new in sorted(edits, reverse=True):
        old = lines[line - 1]
        lines[line - 1] = old[:begin] + new.encode() + old[end:]
    return b"".join(lines).decode()


def renamed(before: Texts) -> tuple[Texts, int]:
    """With other names for helpers that nobody finds by name, in a text or behind a dot; and how many."""
    trees = [ast.parse(text) for text in before.values()]
    found = {name for tree in trees for node in tree.body for name in names(node)} - {*NAMES}
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.arg | ast.keyword | ast.Attribute):
            found.discard(getattr(node, "arg", None) or getattr(node, "attr", ""))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found -= {*re.findall(r"\w+", node.value)}
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith(OURS):
            found -= {each.name for each in node.names}
        elif isinstance(node, ast.ClassDef):
            found -= {name for member in node.body for name in names(member)}
    other = {name: f"{name}_renamed" for name in found}
    after = {file: re.sub(r"\w+", lambda word: other.get(word[0], word[0]), text) for file, text in before.items()}
    return after, len(found)


def names(node: ast.stmt) -> list[str]:
    """Of a function, or of what is assigned."""
    if isinstance(node, ast.FunctionDef):
        return [node.name]
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    return [target.id for target in targets if isinstance(target, ast.Name) and len(target.id) > 3]


def with_every(kind: Kind, before: Texts) -> tuple[Texts, int]:
    """With a kind of edit at every place; and at how many."""
    edits = {file: {*kind(ast.parse(text), text)} for file, text in before.items()}
    return {file: edited(before[file], its) for file, its in edits.items()}, sum(map(len, edits.values()))


def test_nothing_is_stale_for_what_no_program_does(asked: dict[str, set[str]]) -> None:
    functions = asked.keys() | Code(texts()).method().functions
    files = sorted({function.partition(":")[0] for function in functions if ".cu" not in function})
    changes = {kind.__name__: partial(with_every, kind) for kind in (comments, docstrings, messages, unused_fields)}
    changes["names of helpers"] = renamed
    before = {file: texts()[file] for file in files}
    after, places = before, {}
    for kind, change in changes.items():
        after, places[kind] = change(after)
    assert min(places.values()) >= 10, places
    code = Code(texts() | after)
    if (stale(code), version(code)) != (set(), VERSION):
        blamed = {kind: stale(Code(texts() | change(before)[0])) for kind, change in changes.items()}
        raise AssertionError(f"expected that no case is stale, got {blamed}")


def operations(file: str) -> list[tuple[str, Edit]]:
    """The operators within a file's functions that have another one of their kind, with the function's name."""
    text, found = texts()[file], []
    lines = [line.encode() for line in text.splitlines()]
    for function in ast.parse(text).body:
        for node in ast.walk(function) if isinstance(function, ast.FunctionDef) else ():
            if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS and node.left.end_lineno == node.right.lineno:
                begin, end = node.left.end_col_offset or 0, node.right.col_offset
                old, new = OPERATORS[type(node.op)]
                if lines[node.right.lineno - 1][begin:end].decode().strip() == old:
                    found.append((f"{file}:{function.name}", (node.right.lineno, begin, end, f" {new} ")))
    return found


def test_exactly_the_rows_that_list_a_function_are_stale_for_another_operator_in_it(asked: dict[str, set[str]]) -> None:
    """In ten functions that rows list, of ten files, and in five that none does."""
    drawn, method = random.Random(0), Code(texts()).method().functions
    every = [drawn.choice(found) for file in texts() if file.endswith(".py") and (found := operations(file))]
    listed = [each for each in every if each[0] in asked and each[0] not in method]
    others = [each for each in every if each[0] not in asked and each[0] not in method]
    for function, edit in [*drawn.sample(listed, 10), *drawn.sample(others, 5)]:
        file = function.partition(":")[0]
        after = Code(texts() | {file: edited(texts()[file], [edit])})
        assert (function, stale(after), version(after)) == (function, asked.get(function, set()), VERSION)

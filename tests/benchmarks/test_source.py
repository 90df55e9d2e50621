"""The hash that decides whether a number is stale, and whether every case names all the code that it measures."""

import ast
import functools
from pathlib import Path

import pytest

from tests.benchmarks.runner import discover, load
from tests.benchmarks.source import METHOD, ROOT, digest, digest_texts, labels
from tests.benchmarks.sweeps import __main__ as sweeps

# What the method may import without being decided by it: turns of processes that share a GPU.
PLUMBING = {"tests/benchmarks/machine.py"}

CODE = '''
"""A module."""
import torch


def double(x, times=1):
    """Twice x."""
    # a comment
    return x + x if times == 1 else None
'''


def same(other: str) -> bool:
    assert other != CODE, "the test changed nothing"
    return digest_texts([("a.py", CODE)]) == digest_texts([("a.py", other)])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    # a comment\n", ""),
        ("# a comment", "# another"),
        ('"""Twice x."""', '"""Something else."""'),
        ('    """Twice x."""\n', ""),
        ('"""A module."""\n', ""),
        ("x + x if times == 1 else None", "(\n        x + x if times == 1\n        else None\n    )"),
        ("times=1", "times = 1"),
        ("\n\n\n", "\n\n\n\n\n"),
    ],
)
def test_comments_formatting_and_docstrings_do_not_count(old: str, new: str) -> None:
    assert same(CODE.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x + x", "2 * x"),
        ("x + x", "x - x"),
        ("times=1", "times=True"),
        ("times=1", "times=1.0"),
        ("times == 1", "times == '1'"),
        ("import torch", "import torch as t"),
        ("def double", "def twice"),
        ("else None", "else 0"),
    ],
)
def test_code_counts(old: str, new: str) -> None:
    assert not same(CODE.replace(old, new))


def test_a_text_that_is_no_docstring_counts() -> None:
    one, other = ('def f():\n    return "a"\n', 'def f():\n    return "b"\n')
    assert digest_texts([("a.py", one)]) != digest_texts([("a.py", other)])


def test_the_name_counts_and_the_order_does_not() -> None:
    one, other = ("a.py", "x = 1"), ("b.py", "x = 2")
    assert digest_texts([one, other]) == digest_texts([other, one])
    assert digest_texts([one]) != digest_texts([("c.py", "x = 1")])


@pytest.mark.parametrize("changed", ["case.py", "kernel.py", *METHOD])
def test_the_case_the_code_and_the_method_count(tmp_path: Path, changed: str) -> None:
    for name in ("case.py", "kernel.py", *METHOD):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    before = digest("case.py", ["kernel.py"], tmp_path)
    (tmp_path / changed).write_text("x = 1  # one\n")
    assert digest("case.py", ["kernel.py"], tmp_path) == before
    (tmp_path / changed).write_text("x = 2\n")
    assert digest("case.py", ["kernel.py"], tmp_path) != before


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gone\.py"):
        digest("gone.py", [], tmp_path)


STATED = 'CASE = Case(name="a")\n'
LABELS = 'LABELS = {"a": {"label": "b", "role": "eager"}}\n'


def hash_of(text: str) -> str:
    return digest_texts([("a.py", text)])


def test_labels_of_a_case_do_not_count(tmp_path: Path) -> None:
    for text in (LABELS + STATED, STATED + LABELS, STATED + LABELS.replace('"b"', '"c"')):
        assert hash_of(text) == hash_of(STATED)
        (tmp_path / "a.py").write_text(text)
        assert labels(tmp_path / "a.py")["a"]["role"] == "eager"
    (tmp_path / "a.py").write_text(STATED)
    assert labels(tmp_path / "a.py") == {}


@pytest.mark.parametrize(
    "text",
    [
        LABELS,  # no case
        "LABELS = {'a': 1 + 1}\n" + STATED,
        "LABELS = measure()\n" + STATED,
        "LABELS = {'a': f'{x}'}\n" + STATED,
        "LABELS = x = {}\n" + STATED,
        "LABELS, x = {}, 1\n" + STATED,
        "LABELS: dict = {}\n" + STATED,
        "x.LABELS = {}\n" + STATED,
        LABELS + LABELS + STATED,
        LABELS + STATED.replace('"a"', 'LABELS["a"]["label"]'),
        LABELS + STATED + "def f(): return LABELS\n",
        STATED + "def f(): LABELS = {}\n",
    ],
)
def test_nothing_else_can_stand_as_labels(text: str, tmp_path: Path) -> None:
    without = "".join(line for line in text.splitlines(keepends=True) if "LABELS" not in line)
    assert hash_of(text) != hash_of(without)
    (tmp_path / "a.py").write_text(text)
    if "x.LABELS" not in text:
        with pytest.raises(ValueError, match=r"a\.py: expected one LABELS of literals"):
            labels(tmp_path / "a.py")


def test_nothing_imports_the_labels_of_a_case() -> None:
    for path in (ROOT / "tests/benchmarks").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module != "tests.benchmarks.source":
                assert all(alias.name not in ("LABELS", "*") for alias in node.names), path
            assert not (isinstance(node, ast.Attribute) and node.attr == "LABELS"), path


def test_points_of_a_case_do_not_count_unless_used() -> None:
    named = 'POINTS = {"small": "forward 8x8 float32 calls"}\n' + STATED
    assert hash_of(named) == hash_of(named.replace("small", "tiny")) == hash_of(LABELS + named) == hash_of(STATED)
    assert hash_of(used := named + "def f(): return POINTS\n") != hash_of(used.replace("small", "tiny"))


# ---- the project's own cases ----------------------------------------------------------------------------------------


@functools.cache
def imported(path: Path) -> set[Path]:
    """Files of the project that a file imports, at whatever level, and what those import."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for module in modules:
            file = (ROOT / module.replace(".", "/")).with_suffix(".py")
            if module.split(".")[0] in ("snippets", "kernels", "tests") and file.is_file():
                found |= {file} | imported(file)
    return found


def names(paths: set[Path]) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in paths}


# what a case imports for its check or for what it prints, and does not time; to be named with its next measurement
UNTIMED = {
    "examples/first-optimized-module": {"snippets/validation/diagnosis.py"},
    "examples/llama-flash4": {"tests/benchmarks/examples/llama.py"},
    "patterns/fusion": {"snippets/patterns/fusion_candidates.py"},
}


def test_a_case_names_every_project_file_that_it_measures() -> None:
    missing = {
        name: files
        for name, path in discover().items()
        if (files := names(imported(path)) - {*METHOD, *UNTIMED.get(name, ()), *load(path).sources})
    }
    assert not missing, f"cases import these files and do not name them: {missing}"


def test_the_method_is_whole() -> None:
    """What the method calls is method, too; what starts runs and writes records is not, and measures nothing."""
    called = set().union(*(imported(ROOT / file) for file in METHOD))
    assert "tests/benchmarks/method.py" in METHOD, "the others do not import it"
    assert names(called) - set(METHOD) <= PLUMBING
    assert all((ROOT / file).is_file() for file in METHOD)


def test_a_sweep_names_every_project_file_that_it_measures() -> None:
    cases, missing = discover(), {}
    elsewhere = {"snippets/validation/compiled_code.py"}  # the GPUs that stand_ins knows; a sweep asks its own
    for name in sweeps.kernels():
        path, plan = cases[f"kernels/{name.replace('_', '-')}"], ROOT / f"tests/benchmarks/sweeps/{name}.py"
        used = imported(plan) | imported(path) | {file for helper in sweeps.METHOD for file in imported(ROOT / helper)}
        named = sweeps.sources_of(name, load(path), path)["files"]
        if files := names({plan, path} | used) - {*METHOD, *PLUMBING, *elsewhere, *named}:
            missing[name] = files
    assert not missing, f"sweeps import these files and do not name them: {missing}"


def test_no_hashed_file_has_a_format_within_a_format() -> None:
    """`f"{x:>{n}}"`: Python 3.12 parses it into another tree than 3.11, so its hash depends on the version."""
    found = []
    for path in (
        file for folder in ("snippets", "kernels", "tests/benchmarks") for file in (ROOT / folder).rglob("*.py")
    ):
        parts = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FormattedValue))
        nested = [node for node in parts if node.format_spec and len(list(ast.walk(node.format_spec))) > 2]
        found += [f"{path.relative_to(ROOT)}:{node.lineno}" for node in nested]
    assert not found

"""The hash of whole files, which says whether a capture is stale, and the labels of cases."""

import ast
from pathlib import Path

import pytest

from tests.benchmarks.source import ROOT, digest_texts, labels

READ = "tests/benchmarks", "snippets/**/*.py"  # by what finds the cases

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


def test_labels_are_read_from_a_case_s_text_and_do_not_count(tmp_path: Path) -> None:
    (case := tmp_path / "a.py").write_text('LABELS = {"a": {"label": "b", "role": "eager"}}\nCASE = None\n')
    assert labels(case)["a"]["role"] == "eager"
    case.write_text("CASE = None\n")
    assert labels(case) == {}
    case.write_text("LABELS = {'a': f'{x}'}\n")
    with pytest.raises(ValueError, match=r"a\.py: expected LABELS of literals, got"):
        labels(case)
    for folder, alike in (("tests/benchmarks", True), ("snippets", False)):
        hashes = {digest_texts([(f"{folder}/a.py", f"LABELS = {{{what}}}\n")]) for what in ("1: 2", "1: 3")}
        assert (len(hashes) == 1) is alike


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

"""The reader of imports finds every import, wherever it stands."""

import ast
from pathlib import Path

import pytest

from tests.benchmarks.imports import files, imported


@pytest.mark.parametrize(
    ("text", "path", "bound"),
    [
        ("import a", "a", "a"),
        ("import a.b", "a.b", "a"),
        ("import a.b as c", "a.b", "c"),
        ("from a import b", "a.b", "b"),
        ("from a.b import c as d", "a.b.c", "d"),
        ("from . import b", "here.within.b", "b"),
        ("from .b import c", "here.within.b.c", "c"),
        ("from ..b import c", "here.b.c", "c"),
        ("if a:\n    import b", "b", "b"),
        ("try:\n    import b\nexcept ImportError:\n    b = None", "b", "b"),
        ("try:\n    a\nexcept NameError:\n    import b", "b", "b"),
        ("match a:\n    case 1:\n        import b", "b", "b"),
        ("class A:\n    import b", "b", "b"),
    ],
)
def test_an_import_is_read(text: str, path: str, bound: str) -> None:
    for in_functions in (True, False):
        (found,) = imported(ast.parse(text), "here.within", in_functions)
        assert (found.path, found.bound) == (path, bound)


@pytest.mark.parametrize(
    "text", ["def f():\n    import a", "async def f():\n    import a", "class A:\n    def f(self):\n        import a"]
)
def test_imports_in_functions_are_read_where_they_are_asked_for(text: str) -> None:
    assert [each.path for each in imported(ast.parse(text))] == ["a"]
    assert not list(imported(ast.parse(text), in_functions=False))


def test_the_files_behind_imports_are_found(tmp_path: Path) -> None:
    texts = {
        "a.py": "from p import b",
        "p/__init__.py": "",
        "p/b.py": "def f():\n    from p import c",
        "p/c.py": "import a\nimport torch",
        "p/d.py": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert files(tmp_path / "a.py", tmp_path) == {tmp_path / name for name in texts} - {tmp_path / "p/d.py"}

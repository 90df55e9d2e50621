"""Notebooks are executed once, and again when something that they depend on has changed."""

import json
from pathlib import Path

import pytest

from docs.publish.errors import PublishError
from docs.publish.site import notebooks

SCRIPT = """# ---
# jupyter:
#   ridgepoint:
#     title: Tiny
# ---

# %% [markdown]
# # Tiny

# %%
from snippets.one import number

# %%
print(number)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in (
        (notebooks.FOLDER / "tiny.py", SCRIPT),
        (Path("snippets/one.py"), "from snippets.two import two\n\nnumber = two + 40\n"),
        (Path("snippets/two.py"), "two = 2\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def execute(source: Path, root: Path) -> Path:
    return notebooks.keep(notebooks.run(source, root), source, root)


def test_executed_cached_and_stale_after_a_change_of_what_it_imports(root: Path, capfd: pytest.CaptureFixture):
    (source,) = notebooks.sources(root)
    assert notebooks.front_matter(source) == {"title": "Tiny"}
    assert not notebooks.is_fresh(source, root)
    path = execute(source, root)
    assert path == root / ".cache/notebooks/notebooks/tiny.ipynb"
    outputs = [cell["outputs"] for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert outputs[1][0]["text"] == ["42\n"]
    assert "tiny.py: cell 2/2: print(number)" in capfd.readouterr().err
    assert notebooks.is_fresh(source, root)
    (root / "snippets" / "two.py").write_text("two = 3\n")
    assert not notebooks.is_fresh(source, root), "a file that an imported file imports has changed"


def test_a_notebook_whose_linked_files_are_gone_runs_again(root: Path):
    (source,) = notebooks.sources(root)
    left = root / notebooks.EXPERIMENTS / "one" / "metadata.json"
    left.parent.mkdir(parents=True)
    left.touch()
    html = '<a href="../experiments/one/metadata.json">one</a>'
    source.write_text(SCRIPT.replace("print(number)", f"from IPython.display import HTML\nHTML({html!r})"))
    execute(source, root)
    assert notebooks.is_fresh(source, root)
    left.unlink()
    assert not notebooks.is_fresh(source, root)


def test_a_failing_cell_is_named_and_the_last_execution_stays(root: Path):
    (source,) = notebooks.sources(root)
    path = execute(source, root)
    before = path.read_text()
    source.write_text(SCRIPT.replace("print(number)", "print(numbre)"))
    with pytest.raises(PublishError, match=r"tiny.py: cell 2, 'print\(numbre\)': NameError: name 'numbre' is not"):
        execute(source, root)
    assert path.read_text() == before


def test_a_site_has_the_notebook_even_where_it_was_never_executed(root: Path):
    ((source, path),) = notebooks.for_the_site(root)
    assert json.loads(path.read_text())["cells"][-1]["outputs"] == []
    assert not notebooks.is_fresh(source, root)

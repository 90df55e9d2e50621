"""A lost end marker would silently embed the rest of a file: it stops the build and names the file instead."""

from pathlib import Path

import pytest
from mkdocs.exceptions import Abort

from docs.publish.markdown import markers
from docs.publish.site import hooks
from tests.benchmarks.source import ROOT
from tests.pages import tiny

READ = "docs/pages", "snippets/**/*.py", "tests/benchmarks"  # through docs.publish

START, END = "# --8<-- [start:add]", "# --8<-- [end:add]"


def test_every_marker_of_this_project_has_its_partner():
    assert markers.problems(ROOT, hooks.MARKED) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{START}\nx = 1\n", ":1: expected an [end:add] for [start:add], got none"),
        (f"{START}\nx = 1\n# --8<-- [end:ad]\n", ":1: expected an [end:add] for [start:add], got none"),
        (f"{START}\nx = 1\n# --8<-- [End:add]\n", ":3: expected '# --8<-- [start:name]' or '[end:name]'"),
        (f"{START}\nx = 1\n# -8<-- [end:add]\n", ":3: expected '# --8<-- [start:name]' or '[end:name]'"),
        (f"{START}\nx = 1\n# --8<- [end:add]\n", ":3: expected '# --8<-- [start:name]' or '[end:name]'"),
        (f"{START}\nx = 1\n# --8<-- end:add\n", ":3: expected '# --8<-- [start:name]' or '[end:name]'"),
        (f"{START}\n{END}\n{START}\n{END}\n", ":3: expected one [start:add], got a second one"),
        (f"{END}\n{START}\n", ":2: expected [end:add] after [start:add], got it before, in line 1"),
        (f"x = 1\n{END}\n", ":2: expected a [start:add] for [end:add], got none"),
    ],
)
def test_a_marker_without_partner_is_found(text: str, expected: str):
    assert any(problem.startswith(expected) for problem in markers.check(text))


def test_nested_and_sound_markers_pass():
    inner = "# --8<-- [start:inner]\nx = 1\n# --8<-- [end:inner]\n"
    assert list(markers.check(f"{START}\n{inner}{END}\n")) == []
    assert markers.without(f"{START}\n{inner}{END}\n") == "x = 1\n"


@pytest.mark.parametrize("end", ["", "# --8<-- [end:ad]\n"])
def test_a_lost_end_marker_stops_the_build(end: str, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    root = tiny.project(tmp_path, '# Page\n\n```python\n--8<-- "kernels/add.py:add"\n```\n')
    tiny.build(root)
    kernel = root / tiny.KERNEL
    kernel.write_text(kernel.read_text().replace(f"{END}\n", end))
    with pytest.raises(Abort):
        tiny.build(root)
    assert "kernels/add.py:2: expected an [end:add] for [start:add], got none" in caplog.text


def test_nested_markers_are_not_shown(tmp_path: Path):
    page = '# Page\n\n```python\n--8<-- "kernels/add.py:add"\n```\n\n```python\n--8<-- "kernels/add.py"\n```\n'
    root = tiny.project(tmp_path, page)
    nested = "# --8<-- [start:body]\n    c = a + b\n# --8<-- [end:body]\n"
    (root / tiny.KERNEL).write_text(f"{START}\ndef add(a, b):\n{nested}    return c\n{END}\n")
    html = tiny.build(root)["index.html"]
    assert html.count("return") == 2
    assert "8&lt;" not in html
    assert "[start" not in html

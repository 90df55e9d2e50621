"""A number is stale when what it measured or the method changes, and not when comments, formatting or texts do."""

import re
from pathlib import Path

import pytest
from mkdocs.exceptions import Abort

from docs.publish import kept
from docs.publish.records.captures import Captures
from docs.publish.records.measured import Coordinates
from tests.benchmarks.reviewed import VERSION
from tests.pages import tiny

READ = "docs/pages", "snippets/**/*.py", "tests/benchmarks"  # through docs.publish

PAGE = '---\ncase: kernels/add\n---\n\n# Add\n\nOurs takes {{ gpu("ours", "small") }}.\n'
CHANGES = {
    "kernel": (tiny.KERNEL, "return a + b", "return a - b", True),
    "kernel's comment": (tiny.KERNEL, "def add", "# why\ndef add", False),
    "kernel's docstring": (tiny.KERNEL, "return a + b", '"""Add."""\n    return a + b', False),
    "kernel's formatting": (tiny.KERNEL, "return a + b", "return (\n        a + b\n    )", False),
    "case": (tiny.CASE, "prepare=add", "prepare=abs", True),
    "case's comment": (tiny.CASE, "CASE =", "# a case\nCASE =", False),
    "case's question": (tiny.CASE, "Is it fast?", "How fast is it?", False),
    "kernel, so that it is broken": (tiny.KERNEL, "def add", "def def", True),
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("RIDGEPOINT_RELEASE", raising=False)
    root = tiny.project(tmp_path, PAGE)
    tiny.write(root, tiny.record(root))
    return root


def change(root: Path, what: str) -> bool:
    """Make a change; returns whether numbers should be stale then."""
    file, old, new, stale = CHANGES[what]
    text = (root / file).read_text()
    assert old in text
    (root / file).write_text(text.replace(old, new))
    return stale


def changed(root: Path) -> str:
    return tiny.store(root).find(Coordinates("kernels/add", "ours")).stale


@pytest.mark.parametrize("what", CHANGES)
def test_only_changes_that_count_make_a_number_stale(what: str, root: Path):
    assert not changed(root)
    stale = change(root, what)
    assert changed(root) == "code" * stale


def test_where_only_the_method_differs_nothing_says_that_the_code_has_changed(root: Path):
    tiny.write(root, tiny.record(root, [tiny.row(root, sources=tiny.sources(root) | {"method": VERSION + 1})]))
    assert changed(root) == "timing method"
    site = tiny.build(root)
    assert "† Measured before the timing method changed." in site["index.html"]
    assert '"stale":"timing method"' in site["index.html"], "as the evidence of the number says"
    assert not [path for path, text in site.items() if path.endswith(".html") and "The code has changed" in text]
    change(root, "kernel")
    assert "† Measured before the code changed." in tiny.build(root)["index.html"]


@pytest.mark.parametrize(
    ("pins", "said"),
    [
        ("torch==2.11.0\ntriton==3.6.0; sys_platform == 'linux'\n", None),
        ("torch==2.13.0\ntriton==3.6.0\n", "torch 2.11.0 (pinned: 2.13.0)."),
        ("torch==2.13.0\ntriton==3.7.1\n", "torch 2.11.0 (pinned: 2.13.0), triton 3.6.0 (pinned: 3.7.1)."),
    ],
)
def test_a_page_says_which_numbers_are_of_other_versions_than_the_pins(pins: str, said: str | None, root: Path):
    tiny.write(root, tiny.record(root, software={"torch": "2.11.0+cu130", "triton": "3.6.0", "numpy": "2.5.2"}))
    (root / "constraints.txt").write_text(f"numpy==2.4.6\n{pins}")
    html = tiny.build(root)["index.html"]
    assert re.findall(r'<p class="rp-versions">(.*)</p>', html) == [
        f"Some numbers on this page were measured with {said}"
    ] * bool(said)


def test_a_release_refuses_stale_numbers(root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setenv("RIDGEPOINT_RELEASE", "1")
    change(root, "kernel's comment")
    tiny.build(root)
    change(root, "kernel")
    with pytest.raises(Abort):
        tiny.build(root)
    assert "index.md: Time: kernels/add ours forward 8×4 bfloat16 device" in caplog.text
    assert "results/machines/nvidia-h100-80gb-hbm3.md: kernels/add" in caplog.text


def test_a_release_refuses_stale_captures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("RIDGEPOINT_RELEASE", "1")
    root = tiny.project(tmp_path, '# Add\n\n{{ output(of="kernels/add") }}\n')
    tiny.printed(root, {"": "3\n"})
    tiny.build(root)
    change(root, "kernel")
    with pytest.raises(Abort):
        tiny.build(root)
    assert "index.md: output of kernels/add" in caplog.text


def test_a_release_shows_committed_numbers_only(root: Path, monkeypatch: pytest.MonkeyPatch):
    tiny.write(root, tiny.record(root, machine=tiny.LAPTOP), "local")
    assert "results/laptop.json" in tiny.build(root)
    monkeypatch.setenv("RIDGEPOINT_RELEASE", "1")
    site = tiny.build(root)
    assert "results/laptop.json" not in site
    assert "results/nvidia-h100-80gb-hbm3.json" in site


def test_a_gpus_output_is_stale_when_what_its_script_imports_changes(root: Path):
    captures = Captures.load(tiny.printed(root, {"": "3\n"}).parents[1], root)
    capture = captures.find("kernels/add", "")
    change(root, "kernel's comment")
    assert not captures.is_stale(capture)
    change(root, "kernel")
    kept.forget()
    assert captures.is_stale(capture)
    (root / tiny.KERNEL).unlink()
    kept.forget()
    assert captures.is_stale(capture), "it imports what is not there"

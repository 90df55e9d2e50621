"""A statement of order stops the build when the records say otherwise, and names what contradicts it."""

from pathlib import Path

import pytest
from mkdocs.exceptions import Abort

from docs.publish.macros import claims
from docs.publish.records.measured import Coordinates
from tests.benchmarks.reviewed import VERSION
from tests.pages import tiny
from tests.pages.tiny import took

READ = "docs/pages", "snippets/**/*.py", "tests/benchmarks"  # through docs.publish

CASE = "kernels/add"


def times(root: Path, milliseconds: dict[str, float], **changed: object) -> list[dict]:
    """A row for each variant, with its time."""
    return [tiny.row(root, variant=name, time=took(ms), **changed) for name, ms in milliseconds.items()]


@pytest.fixture
def root(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("RIDGEPOINT_RELEASE", raising=False)
    rows = times(root, {"ours": 1, "compile": 1.02, "eager": 2})
    wide = times(root, {"ours": 3, "eager": 2}, shape={"rows": 8, "columns": 8})
    tiny.write(root, tiny.record(root, [*rows, *wide]))
    return root


def against(root: Path, side: str, relation: str, *others: str, margin: float | None = None, **at: str) -> list[str]:
    where = Coordinates(CASE, **{"shape": "8x4"} | at)
    return claims.verdict(tiny.store(root), where, side, relation, others, margin).against


@pytest.mark.parametrize(
    ("side", "relation", "others", "holds"),
    [
        ("ours", "faster", ["all"], True),
        ("ours", "faster", ["compile", "eager"], True),
        ("compile", "faster", ["all"], False),
        ("eager", "slower", ["all"], True),
        ("compile", "slower", ["eager"], False),
        ("ours", "level", ["compile"], True),
        ("compile", "level", ["ours"], True),
        ("ours", "level", ["eager"], False),
        ("compile", "no slower", ["ours"], True),
        ("ours", "no faster", ["compile"], True),
        ("ours", "no faster", ["eager"], False),
        ("eager", "no slower", ["ours"], False),
    ],
)
def test_an_order_holds_or_does_not(side: str, relation: str, others: list[str], holds: bool, root: Path):
    assert (not against(root, side, relation, *others)) is holds


def test_a_margin_is_by_how_much(root: Path):
    for margin, holds in ((0.01, True), (0.05, False)):
        assert (not against(root, "ours", "faster", "compile", margin=margin)) is holds


def test_what_contradicts_is_said_with_both_times(root: Path):
    (line,) = against(root, "ours", "faster", "eager", shape="8x8")
    assert "8×8" in line and "3.00 ms" in line and "2.00 ms of eager" in line


@pytest.mark.parametrize(("mode", "holds"), [("device", True), ("calls", False)])
def test_what_the_host_decides_must_hold_in_every_run_of_the_code(mode: str, holds: bool, root: Path):
    slow, fast = {"ours": 3, "eager": 2}, {"ours": 1, "eager": 2}
    tiny.write(root, tiny.record(root, times(root, slow, mode=mode), day=2))
    tiny.write(root, tiny.record(root, times(root, fast, mode=mode), day=3))
    found = against(root, "ours", "faster", "eager", mode=mode)
    assert (not found) is holds
    assert holds or "2026-01-02" in found[0], "the run that contradicts is named"


def test_runs_of_other_code_or_method_or_on_a_busy_machine_contradict_nothing(root: Path):
    slow, fast = {"ours": 3, "eager": 2}, {"ours": 1, "eager": 2}
    other = {"hash": "0" * 16, "files": [tiny.KERNEL, tiny.CASE]}
    earlier = tiny.sources(root) | {"method": VERSION - 1}  # of the method
    tiny.write(root, tiny.record(root, times(root, slow, mode="calls", sources=other), day=2))
    tiny.write(root, tiny.record(root, times(root, slow, mode="calls", busy="8% stolen"), day=3))
    tiny.write(root, tiny.record(root, times(root, {"ours": 3}, mode="calls"), day=4))
    tiny.write(root, tiny.record(root, times(root, slow, mode="calls", sources=earlier), day=6))
    tiny.write(root, tiny.record(root, times(root, fast, mode="calls"), day=7))
    assert not against(root, "ours", "faster", "eager", mode="calls")


HEAD = "---\ncase: kernels/add\n---\n\n"
PAGES = {
    "index.md": f'{HEAD}Ours is behind{{{{ holds("ours slower than compile", at="small") }}}}.\n',
    "more.md": f'{HEAD}{{{{ holds("ours faster than quack", at="small") }}}}Ours leads.\n\n'
    f'{{{{ holds("a more than b", a=gpu("ours", "small"), b=gpu("eager", "small")) }}}}\n',
}


def test_the_build_names_every_statement_of_every_page_that_fails(root: Path, caplog: pytest.LogCaptureFixture):
    for name, text in PAGES.items():
        (root / "docs/pages" / name).write_text(text)
    with pytest.raises(Abort):
        tiny.build(root)
    assert "index.md: holds 'ours slower than compile', at 'small': kernels/add ours forward 8×4" in caplog.text
    assert "takes 1.00 ms in 2026-01-01T00-00-00Z-nvidia-h100-80gb-hbm3, against 1.02 ms of compile" in caplog.text
    assert "more.md: holds 'ours faster than quack', at 'small': variant of kernels/add: expected one of" in caplog.text
    assert "more.md: holds 'a more than b', at '': Time: kernels/add ours" in caplog.text


def test_a_side_that_no_statement_names_is_refused(root: Path, caplog: pytest.LogCaptureFixture):
    """As a margin would be that is not called `by`."""
    said = PAGES["index.md"].replace("ours slower than compile", "ours faster than compile")
    assert said != PAGES["index.md"]
    (root / "docs/pages/index.md").write_text(said.replace('at="small"', 'at="small", margin=0.5'))
    with pytest.raises(Abort):
        tiny.build(root)
    assert "expected sides that 'ours faster than compile' names, got margin" in caplog.text


def test_a_statement_that_holds_shows_nothing_but_what_warns_of_its_numbers(root: Path, monkeypatch):
    (root / "docs/pages/index.md").write_text(PAGES["index.md"].replace("slower", "faster"))
    assert "<p>Ours is behind.</p>" in tiny.build(root)["index.html"]
    (root / tiny.KERNEL).write_text("def add(a, b):\n    return a - b\n")
    assert 'Ours is behind <small class="rp-badge">stale</small>.' in tiny.build(root)["index.html"]
    monkeypatch.setenv("RIDGEPOINT_RELEASE", "1")
    with pytest.raises(Abort):
        tiny.build(root)

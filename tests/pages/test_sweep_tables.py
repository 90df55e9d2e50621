"""A page shows what a sweep tried, which of it the launch table takes, and whether it is of the code as it is."""

from pathlib import Path

import pytest
from mkdocs.exceptions import Abort

from docs.publish import markup
from docs.publish.errors import PublishError
from docs.publish.evidence import Evidence
from docs.publish.macros import claims, sweeps
from docs.publish.markup import STALE, STALE_ALL
from docs.publish.place import Place, kernel_files
from docs.publish.records.schema import SweepPoint
from docs.publish.records.sweeps import elsewhere, newest
from tests.benchmarks.reviewed import VERSION
from tests.benchmarks.source import ROOT
from tests.benchmarks.sweeps import BY_A_MODEL
from tests.pages import tiny

READ = "docs/pages", "snippets/**/*.py", "tests/benchmarks"  # through docs.publish

PLACE = Place("kernels/softmax.md", "kernels/softmax/")


def test_every_point_of_the_newest_sweeps_can_be_shown():
    swept = [kernel for kernel in kernel_files() if kernel not in BY_A_MODEL]
    for kernel in swept:
        first, others = newest(kernel, ROOT)[0], [sweep for sweep, _ in elsewhere(kernel, ROOT)]
        for point in first.points:
            page = Evidence(PLACE)
            html = sweeps.table(ROOT, page, kernel, point.direction, point.size, point.dtype)
            where = f"{kernel} {point.direction} {point.size} {point.dtype}"
            shown = [point, *(its for sweep in others for its in sweep.points if same(its, point))]
            assert html.count("in the launch table") == len(shown), where
            assert html.count("<tr>") == len(shown) + (tried := sum(len(its.tried) for its in shown)), where
            machines = [entry["machine"] for entry in page.entries.values() if entry["date"]]
            assert len(machines) == 2 * tried and "NVIDIA H100" in machines[0], where


def same(one: SweepPoint, other: SweepPoint) -> bool:
    return (one.direction, one.size, one.dtype) == (other.direction, other.size, other.dtype)


def test_a_point_that_was_not_swept_is_refused():
    with pytest.raises(PublishError, match=r"point of the sweep of softmax: expected one of .*; got .forward 1x2"):
        sweeps.table(ROOT, Evidence(PLACE), "softmax", "forward", "1x2")
    with pytest.raises(PublishError, match=r"sweep: expected one of .*softmax"):
        sweeps.table(ROOT, Evidence(PLACE), "softmaxx", "forward", "1x2")


# ---- stale sweeps, in a project of one kernel ------------------------------------------------------------------------

PAGE = '# Add\n\n{{ sweep("add", direction="forward", shape="8x4") }}\n'
OPTIONS = {"num_warps": 4}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("RIDGEPOINT_RELEASE", raising=False)
    monkeypatch.setattr(sweeps, "chosen", lambda *question: OPTIONS)
    root = tiny.project(tmp_path, PAGE)
    tiny.write(root, tiny.record(root))
    write(root)
    return root


def write(root: Path, **changed: object) -> None:
    """One sweep of the tiny kernel, with its sources as they are."""
    point = {
        "shape": {"rows": 8, "columns": 4},
        "dtype": "bfloat16",
        "direction": "forward",
        "part": "",
        "bytes": 10**9,
    }
    tried = [{"options": OPTIONS, "in_the_table": True, "time": tiny.TIMING}]
    points = [point | {"asked": {"row_length": 4, "bits": 16}, "tried": tried, "failed": []}]
    of_run = {key: value for key, value in tiny.record(root).items() if key in KEPT}
    of_code = {"sources": tiny.sources(root), "points": points}
    tiny.write(root, of_run | {"kernel": "add"} | of_code | changed, "sweeps/add")


KEPT = ("schema", "id", "date", "command", "commit", "dirty", "machine", "software")


def replace(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_a_table_says_that_it_is_stale_only_if_each_number_is():
    stale, fresh = f'<a class="rp-number rp-stale">1{STALE}</a>', '<a class="rp-number">2</a>'
    assert STALE_ALL in (both := markup.panel(what="", body=stale * 2, source="")) and STALE not in both
    assert STALE_ALL not in (mixed := markup.panel(what="", body=stale + fresh, source="")) and mixed.count(STALE) == 1


def test_a_sweep_is_stale_when_the_kernel_or_the_method_changes(root: Path):
    assert "stale" not in tiny.build(root)["index.html"]
    replace(root / tiny.KERNEL, "def add", "# why\ndef add")
    assert "stale" not in tiny.build(root)["index.html"]
    replace(root / tiny.KERNEL, "a + b", "a - b")
    assert tiny.build(root)["index.html"].count(STALE_ALL) == 1, "said once of its time and its bandwidth"
    replace(root / tiny.KERNEL, "a - b", "a + b")
    write(root, sources=tiny.sources(root) | {"method": VERSION + 1})
    assert tiny.build(root)["index.html"].count(STALE_ALL) == 1


def test_a_release_refuses_a_stale_sweep(root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setenv("RIDGEPOINT_RELEASE", "1")
    tiny.build(root)
    replace(root / tiny.KERNEL, "a + b", "a - b")
    tiny.write(root, tiny.record(root, day=2))  # the case was measured again, the sweep was not
    with pytest.raises(Abort):
        tiny.build(root)
    assert "index.md: Time: kernels/add forward 8 × 4 bfloat16, warps 4" in caplog.text
    caplog.clear()
    (root / "docs/pages/index.md").write_text("# Add\n")
    with pytest.raises(Abort):
        tiny.build(root)
    assert "docs/measurements/sweeps/add/2026-01-01T00-00-00Z-nvidia-h100-80gb-hbm3.json" in caplog.text, "shown or not"
    caplog.clear()
    write(root)
    tiny.build(root)


@pytest.mark.parametrize(("changed", "came"), [({"dirty": True}, "uncommitted changes"), ({"commit": None}, "none")])
def test_a_sweep_of_no_commit_is_refused(changed: dict, came: str, root: Path):
    write(root, **changed)
    with pytest.raises(PublishError, match=rf"sweeps/add/.*: expected a run of a commit, got .*{came}"):
        newest("add", root)


def test_another_machine_s_sweep_stands_beside_while_it_is_of_the_code_as_it_is(root: Path):
    machine = tiny.record(root)["machine"] | {"slug": "nvidia-h200", "name": "NVIDIA H200"}
    write(root, id="2026-01-03T00-00-00Z-nvidia-h200", machine=machine)
    html = tiny.build(root)["index.html"]
    assert html.count('class="rp-chart__panel') == 2 and html.index("NVIDIA H100") < html.index("NVIDIA H200")
    replace(root / tiny.KERNEL, "a + b", "a - b")
    assert "NVIDIA H200" not in tiny.build(root)["index.html"], "an old one of another machine proves nothing"


# ---- statements about a sweep ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "relation", "others", "contradicted"),
    [
        ({"num_warps": 4}, "faster", [{"num_warps": 8}], ""),
        ({"num_warps": 4}, "faster", [], ""),
        ({"num_warps": 8}, "faster", [], "takes 2.00 ms against 1.00 ms of the others"),
        ({"num_warps": 8}, "level", [{"num_warps": 4}], "takes 2.00 ms against 1.00 ms of"),
        ({"TILES": None}, "slower", [{"TILES": 2}], ""),
    ],
)
def test_a_statement_about_what_was_tried(options: dict, relation: str, others: list, contradicted: str, root: Path):
    slow = {name: 2 * value if name != "samples" else value for name, value in tiny.TIMING.items()}
    other = {"options": {"num_warps": 8}, "in_the_table": False, "time": slow}
    first = {"options": OPTIONS | {"TILES": 2}, "in_the_table": True, "time": tiny.TIMING}
    point = newest("add", root)[0].model_dump()["points"][0]
    write(root, points=[point | {"tried": [first, other]}])
    sweep, points, stale = sweeps.points(root, "add", "forward", ["8x4"])
    found = claims.verdict_of_sweep(sweep, points, stale, options, relation, others)
    assert contradicted in "".join(found.against) and bool(contradicted) == bool(found.against)


def test_a_statement_about_what_was_never_tried_is_refused(root: Path):
    sweep, points, stale = sweeps.points(root, "add", "forward", ["8x4"])
    with pytest.raises(PublishError, match=r"'num_warps': 32\}: expected one that was tried, got none"):
        claims.verdict_of_sweep(sweep, points, stale, {"num_warps": 32}, "faster", [])

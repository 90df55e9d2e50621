"""What tests, lint and docs take: counted by area, held against the budget, recorded, and shown."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from docs.publish import units
from docs.publish.errors import PublishError
from docs.publish.macros import suite
from docs.publish.place import Place
from docs.publish.records.schema import Suite, read
from tests import budget
from tests.benchmarks.source import ROOT

WORKS = """
import subprocess, sys, time
import pytest

BUSY = "import time; [None for _ in iter(lambda: time.process_time() < {seconds}, False)]; print(flush=True); input()"

@pytest.fixture(scope="session")
def busy():
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", BUSY], **pipes, stderr=subprocess.DEVNULL) as lives:
        lives.stdout.readline()
        yield

def test_one(busy): pass
def test_two(): pass
"""
PLACE = Place("reference/contributing.md", "reference/contributing/")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Tests in two areas; those of kernels/ start a program that takes more."""
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\naddopts = --import-mode=importlib\n")
    for area, seconds in (("kernels", 0.6), ("pages", 0.1)):
        folder = tmp_path / "tests" / area
        folder.mkdir(parents=True)
        (folder / f"test_{area}.py").write_text(WORKS.format(seconds=seconds))
    return tmp_path


def run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "tests.seconds", *arguments]
    settings = {"PYTHONPATH": str(ROOT)}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(command, cwd=tree, env=inherited | settings, capture_output=True, text=True)


def counted(tree: Path) -> dict:
    return json.loads((tree / ".cache" / "seconds" / "areas.json").read_text())


# ---- counting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [0, 2])
def test_a_run_ends_with_processor_seconds_by_area(tree: Path, processes: int) -> None:
    """Those of what a test's fixture starts and what lives on, too; once, however many processes count."""
    lines = run(tree, f"--numprocesses={processes}").stdout.splitlines()
    listed = [line.split(maxsplit=1)[1] for line in lines if line.startswith("    ")]
    assert {"kernels, 2 tests", "pages, 2 tests", "tests/kernels/test_kernels.py"} <= set(listed)
    content = counted(tree)
    areas = {area["name"]: area for area in content["areas"]}
    assert content["passed"] and not content["remembered"] and content["processes"] == max(1, processes)
    assert 0.6 <= areas["kernels"]["seconds"] < 1.2 and 0.1 <= areas["pages"]["seconds"] < 0.6
    assert areas["collection"]["tests"] is None and content["reference"] > 0
    assert content["files"][0]["name"] == "tests/kernels/test_kernels.py"


@pytest.mark.parametrize("chosen", [["tests/pages"], ["-k", "one"], ["-m", "slow"]])
def test_a_part_of_the_tests_is_not_written(tree: Path, chosen: list[str]) -> None:
    run(tree, *chosen)
    assert not (tree / ".cache" / "seconds").exists()


def test_what_was_remembered_and_what_failed_are_written_as_such(tree: Path) -> None:
    run(tree, "-p", "tests.remembered")
    run(tree, "-p", "tests.remembered")
    assert counted(tree)["remembered"] > 0
    (tree / "tests" / "pages" / "test_fails.py").write_text("def test_fails(): assert False")
    run(tree)
    assert not counted(tree)["passed"]


# ---- the budget -----------------------------------------------------------------------------------------------------


@pytest.fixture
def taken(tmp_path: Path) -> Path:
    """A checkout in which all three sessions have run, each within its budget."""
    folder = tmp_path / ".cache" / "seconds"
    folder.mkdir(parents=True)
    for name in budget.SESSIONS:
        (folder / f"{name}.json").write_text(json.dumps({"seconds": 95.2, "processor": 50.0}))
    areas = [{"name": "kernels", "tests": 7, "seconds": 140.0}, {"name": "collection", "tests": None, "seconds": 1.0}]
    tests = {"passed": True, "remembered": 0, "processes": 2, "reference": 0.02, "areas": areas, "files": []}
    (folder / "areas.json").write_text(json.dumps(tests))
    (tmp_path / "tests").mkdir()
    numbers = "kernels = 100\ncollection = 0.5\nlint = 50\ndocs = 50\n"
    (tmp_path / "tests" / "budget.toml").write_text(f"reference = 0.02\n\n[areas]\n{numbers}")
    (tmp_path / "README.md").write_text(f"# One\n\n{budget.BEGIN}old\n{budget.END}\nMore.\n")
    return tmp_path


def change(root: Path, file: str, **values: object) -> None:
    path = root / ".cache" / "seconds" / file
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_within_the_budget(taken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert budget.main([], taken) == 0
    assert "keeps to tests/budget.toml" in capsys.readouterr().out
    assert not (taken / budget.FOLDER).exists()


@pytest.mark.parametrize(
    ("area", "seconds", "line"),
    [
        ("kernels", 160.0, "kernels: expected at most 150 processor seconds, took 160"),
        ("collection", 1.8, "collection: expected at most 2 processor seconds, took 2"),
        ("new", 1.0, "new: expected a number in tests/budget.toml, got none"),
    ],
)
def test_an_area_over_its_number_or_without_one_fails(
    taken: Path, capsys: pytest.CaptureFixture[str], area: str, seconds: float, line: str
) -> None:
    change(taken, "areas.json", areas=[{"name": area, "tests": 1, "seconds": seconds}])
    assert budget.main([], taken) == 1
    assert line in capsys.readouterr().out


def test_a_slower_processor_may_take_longer(taken: Path) -> None:
    change(taken, "areas.json", areas=[{"name": "kernels", "tests": 7, "seconds": 290.0}], reference=0.04)
    change(taken, "docs.json", processor=140.0)
    assert budget.main([], taken) == 0


def test_a_faster_loop_allows_no_less(taken: Path) -> None:
    change(taken, "areas.json", reference=0.01)
    assert budget.main([], taken) == 0


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"passed": False}, "all tests to have passed"),
        ({"remembered": 3}, "3 tests were remembered"),
        (None, "found no"),
    ],
)
def test_what_is_no_whole_run_is_not_judged(
    taken: Path, capsys: pytest.CaptureFixture[str], values: dict | None, line: str
) -> None:
    if values is None:
        (taken / ".cache" / "seconds" / "docs.json").unlink()
    else:
        change(taken, "areas.json", **values)
    assert budget.main([], taken) == 2
    assert line in capsys.readouterr().err


# ---- the record -----------------------------------------------------------------------------------------------------


def records(root: Path) -> list[Path]:
    return sorted((root / budget.FOLDER).glob("*.json"))


def test_a_run_is_recorded_and_shown(taken: Path) -> None:
    assert budget.main(["--publish"], taken) == 0
    (path,) = records(taken)
    record = read(path, Suite, taken)
    shown = suite.table(taken, PLACE)
    for expected in ("kernels", units.text(140.0, "s"), record.date[:10], record.machine["name"], "nox -s docs"):
        assert expected in shown
    readme = (taken / "README.md").read_text()
    assert "| `nox -s tests` | 1 min 35 s |" in readme and "old" not in readme and readme.endswith("More.\n")


def test_the_newest_record_is_shown(taken: Path) -> None:
    budget.main(["--publish"], taken)
    (path,) = records(taken)
    content = json.loads(path.read_text())
    (path.parent / "2999-01-01.json").write_text(json.dumps(content | {"date": "2999-01-01T00:00:00Z"}))
    assert "2999-01-01" in suite.table(taken, PLACE)
    (path.parent / "2999-01-02.json").write_text(json.dumps(content | {"areas": []}))
    with pytest.raises(PublishError, match="2999-01-02"):
        suite.table(taken, PLACE)


def test_without_a_record_the_page_says_how_to_make_one(tmp_path: Path) -> None:
    assert suite.COMMAND in suite.table(tmp_path, PLACE)


def test_the_readme_shows_the_newest_record() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme == budget.with_times(readme, json.loads(records(ROOT)[-1].read_text(encoding="utf-8")))

"""What the tests take: counted by area, written as a record on demand, and shown from the newest record."""

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
from tests.benchmarks.source import ROOT

SLEEPS = """
import time
import pytest

@pytest.fixture
def slow():
    time.sleep({seconds})

def test_one(slow): pass
def test_two(): pass
"""
PLACE = Place("reference/contributing.md", "reference/contributing/")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Tests in two areas; those of kernels/ take longer."""
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\naddopts = --import-mode=importlib\n")
    for area, seconds in (("kernels", 0.6), ("pages", 0.1)):
        folder = tmp_path / "tests" / area
        folder.mkdir(parents=True)
        (folder / f"test_{area}.py").write_text(SLEEPS.format(seconds=seconds))
    return tmp_path


def run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "tests.seconds", *arguments]
    settings = {"PYTHONPATH": str(ROOT)}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(command, cwd=tree, env=inherited | settings, capture_output=True, text=True)


def records(tree: Path) -> list[Suite]:
    return [read(path, Suite, tree) for path in sorted((tree / suite.FOLDER).glob("*.json"))]


def test_a_run_ends_with_seconds_by_area(tree: Path) -> None:
    lines = run(tree).stdout.splitlines()
    listed = [line.split(maxsplit=1) for line in lines if line.startswith("    ")]
    assert [what for _, what in listed] == [
        "kernels, 2 tests", "pages, 2 tests", "tests/kernels/test_kernels.py", "tests/pages/test_pages.py",
    ]  # fmt: skip
    assert float(listed[0][0]) >= 0.6, "a fixture's time is its test's"
    assert not records(tree)


def test_a_run_is_recorded_and_shown(tree: Path) -> None:
    done = run(tree, "--areas", "--numprocesses=2")
    (record,) = records(tree)
    assert done.returncode == 0
    assert record.processes == 2
    assert [(area.name, area.tests) for area in record.areas] == [("kernels", 2), ("pages", 2)]
    assert record.areas[0].seconds >= 0.6
    assert record.files[0].name == "tests/kernels/test_kernels.py"
    assert {"python", "torch", "triton"} <= record.software.keys()
    shown = suite.table(tree, PLACE)
    longest = units.text(record.areas[0].seconds, "s")
    for expected in ("kernels", longest, record.date[:10], record.machine["name"]):
        assert expected in shown


def test_the_newest_record_is_shown(tree: Path) -> None:
    run(tree, "--areas")
    (path,) = (tree / suite.FOLDER).glob("*.json")
    content = json.loads(path.read_text())
    (path.parent / "2999-01-01.json").write_text(json.dumps(content | {"date": "2999-01-01T00:00:00Z"}))
    assert "2999-01-01" in suite.table(tree, PLACE)
    (path.parent / "2999-01-02.json").write_text(json.dumps(content | {"areas": []}))
    with pytest.raises(PublishError, match="2999-01-02"):
        suite.table(tree, PLACE)


def test_without_a_record_the_page_says_how_to_make_one(tmp_path: Path) -> None:
    assert suite.COMMAND in suite.table(tmp_path, PLACE)


@pytest.mark.parametrize("chosen", [["tests/pages"], ["-k", "one"], ["-m", "slow"]])
def test_a_part_of_the_tests_is_not_recorded(tree: Path, chosen: list[str]) -> None:
    done = run(tree, "--areas", *chosen)
    assert "expected no paths" in done.stderr
    assert not records(tree)


def test_a_run_with_a_failure_is_not_recorded(tree: Path) -> None:
    (tree / "tests" / "pages" / "test_fails.py").write_text("def test_fails(): assert False")
    assert "not all tests passed" in run(tree, "--areas").stdout
    assert not records(tree)


def test_a_recorded_run_takes_nothing_from_earlier_ones(tree: Path) -> None:
    cached = ["-p", "tests.kernels.cached"]
    run(tree, *cached)
    assert "2 cached" in run(tree, *cached).stdout
    run(tree, *cached, "--areas")
    assert records(tree)[0].areas[0].seconds >= 0.6

"""The report of a test run says how every test ended, why some did not run, and on what."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace

import pytest

from docs.publish.records.schema import TestReport, read
from tests.benchmarks.source import ROOT
from tests.report import Report

TESTS = """
import sys
import pytest

def test_passes(): pass
def test_fails(): assert 1 < 0, f"one is not, says {sys.executable} of here"
@pytest.mark.skipif(True, reason="needs two GPUs")
def test_skipped(): pass
@pytest.mark.xfail(reason="known")
def test_xfails(): assert False
@pytest.fixture
def broken(): raise RuntimeError("no luck")
def test_errors(broken): pass
"""


@pytest.fixture
def report_of(forked: Callable[..., CompletedProcess[str]]) -> Callable[..., TestReport]:
    def report_of(folder: Path, *arguments: str) -> TestReport:
        target = f"--report={folder / 'report.json'}"
        command = ["-m", "pytest", "-q", "-p", "tests.report", target, *arguments]
        forked([*command, "--rootdir", str(folder), "-c", "/dev/null", str(folder)])
        return read(folder / "report.json", TestReport, folder)

    return report_of


def test_every_outcome_is_reported_with_its_reason(report_of, tmp_path: Path):
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_broken.py").write_text("import nothing_of_this_name\n")
    report = report_of(tmp_path, "--report-commit", "c" * 40, "--continue-on-collection-errors")
    ended = {test.id.rpartition("::")[2]: (test.outcome, test.reason) for test in report.tests}
    assert ended["test_passes"] == ("passed", "")
    assert ended["test_skipped"] == ("skipped", "needs two GPUs")
    assert ended["test_xfails"] == ("xfailed", "known")
    assert ended["test_errors"] == ("error", "RuntimeError: no luck")
    assert ended["test_fails"][0] == "failed"
    assert "one is not, says python of here" in ended["test_fails"][1]  # a machine's paths are its own
    assert any(test.id.endswith("test_broken.py") and test.outcome == "error" for test in report.tests)
    assert (report.commit, report.dirty) == ("c" * 40, False)
    assert "torch" in report.software
    assert report.command.startswith("python -m pytest -q -p tests.report --continue-on-collection-errors")
    assert report.deselected == 0
    assert {path.stem for path in (ROOT / "kernels").glob("[!_]*.py")} == report.kernels.keys()


@pytest.mark.parametrize("processes", ((), ("--numprocesses=1",)))
def test_one_process_or_that_of_several_writes_one_report_and_counts_what_the_command_leaves_out(
    report_of, processes, tmp_path: Path
):
    (tmp_path / "test_some.py").write_text(f"{TESTS}def test_left_out(): pass\ndef test_left_out_too(): pass\n")
    report = report_of(tmp_path, "--report-commit", "c" * 40, *processes, "-k", "not left_out")
    assert {test.outcome for test in report.tests} == {"passed", "failed", "skipped", "xfailed", "error"}
    assert (len(report.tests), report.deselected) == (5, 2)


def test_what_several_processes_leave_out_counts_once():
    """All of them collect the same tests. A process that starts with torch takes seconds, so there are none here."""
    report = Report.__new__(Report)
    report.content = {"deselected": 0}
    for output in ({"deselected": 2}, {"deselected": 2}, {}):
        report.pytest_testnodedown(SimpleNamespace(workeroutput=output))
    assert report.content["deselected"] == 2


def test_a_run_that_is_broken_off_has_an_error(report_of, tmp_path: Path):
    (tmp_path / "test_some.py").write_text("def test_passes(): pass\ndef test_breaks_off(): raise KeyboardInterrupt\n")
    report = report_of(tmp_path, "--report-commit", "c" * 40)
    ended = {test.id.rpartition("::")[2]: (test.outcome, test.reason) for test in report.tests}
    assert ended["test_passes"][0] == "passed"
    assert ended["the run"] == ("error", "pytest ended with INTERRUPTED, not with the last test")

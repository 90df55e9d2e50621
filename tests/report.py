"""Writes how every test ended, and on what: `pytest -p tests.report --report=FILE`.

The site's verification page shows the reports in docs/measurements/tests. This runs where only torch and pytest are
installed. FILE is written when the run ends, whole or not at all.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

from tests.benchmarks import machine, source
from tests.benchmarks.captures import without_paths
from tests.benchmarks.runner import commit_of_tree, published_command
from tests.benchmarks.whole import write_whole

SCHEMA = 1


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("report")
    group.addoption("--report", type=Path, metavar="FILE", help="write how every test ended to FILE")
    group.addoption("--report-commit", metavar="SHA", help="the commit tested, where the folder is no git checkout")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--report"):
        return
    if hasattr(config, "workerinput"):  # one process writes, but it does not collect
        config.pluginmanager.register(Deselected(config), "report-deselected")
    else:
        config.pluginmanager.register(Report(config), "report-writer")


class Deselected:
    """Tells the process that writes how many tests this one left out; all collect the same."""

    def __init__(self, config: pytest.Config):
        self.output: dict = config.workeroutput  # type: ignore[attr-defined]

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self.output["deselected"] = self.output.get("deselected", 0) + len(items)


class Report:
    """Collects outcomes, and writes them at the end."""

    def __init__(self, config: pytest.Config):
        self.path: Path = config.getoption("--report")
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        given = config.getoption("--report-commit")
        commit, dirty = (given, False) if given else commit_of_tree()
        now = datetime.now(UTC)
        described = machine.describe(device)
        self.content: dict = {
            "schema": SCHEMA,
            "id": f"{now:%Y-%m-%dT%H-%M-%SZ}-{described['slug']}",
            "date": f"{now:%Y-%m-%dT%H:%M:%SZ}",
            "command": published_command(
                "python -m pytest", config.invocation_params.args, own=("--report", "--report-commit")
            ),
            "commit": commit,
            "dirty": dirty,
            "machine": described,
            "software": machine.software() | {"pytest": pytest.__version__},
            "kernels": source.kernels(),
            "deselected": 0,
        }
        self.tests: dict[str, dict] = {}

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self.content["deselected"] += len(items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node) -> None:
        """A worker of pytest-xdist is done."""
        deselected = getattr(node, "workeroutput", {}).get("deselected", 0)
        self.content["deselected"] = max(self.content["deselected"], deselected)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One phase of a test: what went wrong in setup or teardown counts as an error."""
        test = self.tests.setdefault(report.nodeid, {"id": report.nodeid, "outcome": "passed", "seconds": 0.0})
        test["seconds"] = round(test["seconds"] + report.duration, 3)
        outcome = outcome_of(report)
        if outcome != "passed":
            test["outcome"] = outcome
            test["reason"] = reason_of(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be collected, or skips itself whole, is not passed over."""
        if report.outcome != "passed":
            outcome = "error" if report.failed else "skipped"
            self.tests[report.nodeid] = {
                "id": report.nodeid, "outcome": outcome, "seconds": 0.0, "reason": reason_of(report)
            }  # fmt: skip

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """A run that did not come to its end has an error, however its tests ended."""
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            ended = f"pytest ended with {getattr(exitstatus, 'name', exitstatus)}, not with the last test"
            self.tests["the run"] = {"id": "the run", "outcome": "error", "seconds": 0.0, "reason": ended}
        write_whole(self.path, self.content | {"tests": list(self.tests.values())})


def outcome_of(report: pytest.TestReport) -> str:
    """passed, failed, error, skipped, xfailed or xpassed."""
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed" if report.passed and report.when == "call" else report.outcome
    return "error" if report.failed and report.when != "call" else report.outcome


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test was skipped or failed, in one line."""
    if getattr(report, "wasxfail", ""):
        return str(report.wasxfail).removeprefix("reason: ")
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash else str(report.longrepr or "")
    return without_paths(" ".join(message.split()))[:300]

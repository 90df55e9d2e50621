"""What the tests take: at the end of a run, seconds by area and the five slowest files.

`nox -s tests -- --areas` also writes them to docs/measurements/suite, for the table in the contributor's guide.
"""

import os
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

SCHEMA = 1
FOLDER = Path("docs/measurements/suite")
SLOWEST = 5


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("report").addoption("--areas", action="store_true", help=f"write what the areas take to {FOLDER}")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--areas"):
        config.option.fresh = True  # what tests/kernels/cached.py leaves out takes no time
    if hasattr(config, "workerinput"):  # one process counts
        return
    chosen = config.option.keyword or config.option.markexpr or config.args_source is config.ArgsSource.ARGS
    if config.getoption("--areas") and chosen:
        raise pytest.UsageError("--areas is about all tests: expected no paths, no -k and no -m")
    config.pluginmanager.register(Seconds(config), "seconds")


def area_of(file: str) -> str:
    """The folder in tests/ that a test's file is in."""
    parts = Path(file).parts
    return parts[1] if len(parts) > 2 else parts[-1]


class Seconds:
    """Counts while tests run; setup and teardown belong to their test."""

    def __init__(self, config: pytest.Config):
        self.config = config
        self.begun = datetime.now(UTC)
        self.seconds: Counter[str] = Counter()
        self.tests: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self.seconds[file] += report.duration
        self.tests[file] += report.when == "setup"

    def areas(self) -> list[dict]:
        """Those with the most seconds first."""
        seconds: Counter[str] = Counter()
        tests: Counter[str] = Counter()
        for file in self.seconds:
            seconds[area_of(file)] += self.seconds[file]
            tests[area_of(file)] += self.tests[file]
        return [{"name": name, "tests": tests[name], "seconds": round(n, 1)} for name, n in seconds.most_common()]

    def files(self) -> list[dict]:
        """The slowest."""
        return [{"name": name, "seconds": round(n, 1)} for name, n in self.seconds.most_common(SLOWEST)]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
        if len(self.seconds) < 2:
            return
        terminalreporter.section("seconds by area, and the slowest files")
        for each in self.areas():
            terminalreporter.line(f"{each['seconds']:9.1f}  {each['name']}, {each['tests']} tests")
        terminalreporter.line("")
        for each in self.files():
            terminalreporter.line(f"{each['seconds']:9.1f}  {each['name']}")
        if self.config.getoption("--areas"):
            terminalreporter.line(f"\n{self.written(exitstatus)}")

    def written(self, exitstatus: int) -> str:
        """Write the record of a run in which all passed; returns what became of it, in a line."""
        import torch

        from tests.benchmarks import machine
        from tests.benchmarks.runner import commit_of_tree, published_command, write_whole

        if exitstatus:
            return "not all tests passed: what they took is not written"
        commit, dirty = commit_of_tree()
        described = machine.describe(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        path = self.config.rootpath / FOLDER / f"{self.begun:%Y-%m-%dT%H-%M-%SZ}-{described['slug']}.json"
        record = {
            "schema": SCHEMA,
            "date": f"{self.begun:%Y-%m-%dT%H:%M:%SZ}",
            "command": published_command("python -m pytest", self.config.invocation_params.args, own=()),
            "commit": commit,
            "dirty": dirty,
            "machine": described,
            "software": machine.software() | {"pytest": pytest.__version__},
            "processes": len(self.config.getoption("tx", None) or [None]),
            "seconds": round((datetime.now(UTC) - self.begun).total_seconds(), 1),
            "areas": self.areas(),
            "files": self.files(),
        }
        write_whole(path, record)
        return f"written to {os.path.relpath(path)}"

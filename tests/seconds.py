"""What the tests take: processor seconds by area at the end of a run, and the five files that take most.

A file's seconds are those of the process and of all that this has started, living or ended, while tests of the file
follow each other, with what they set up and tear down. Collecting, importing and ending are an area of their own. A run
of all tests is written to .cache/seconds/areas.json, which `nox -s budget` judges.
"""

import json
import os
import resource
import time
from collections import Counter
from pathlib import Path

import pytest

WRITTEN = Path(".cache/seconds/areas.json")
SLOWEST = 5
AROUND = "collection"  # and all else that belongs to no test
EVERY = 60  # seconds between two looks at how fast the processor is
TICKS = os.sysconf("SC_CLK_TCK")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Seconds(config), "seconds")


def area_of(file: str) -> str:
    """The folder in tests/ that a test's file is in; "tests" for a file beside these folders."""
    parts = Path(file).parts
    return parts[1] if len(parts) > 2 else parts[0]


def reference() -> float:
    """Processor seconds of a fixed loop here and now: a processor that is slow, or shares a core, takes longer."""
    began = time.process_time()
    sum(number * number for number in range(500_000))
    return time.process_time() - began


def taken(alone: bool = False) -> float:
    """Processor seconds of this process, and of all that it has started so far unless it counts alone."""
    sources = (resource.RUSAGE_SELF,) if alone else (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    own = sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, sources))
    return own if alone else own + taken_below(os.getpid())


def taken_below(process: int) -> float:
    """Processor seconds of all living processes below one and of those that they have waited for, where there is /proc.

    One look at all processes: to ask each for its children is to ask each of its threads.
    """
    children: dict[int, list[tuple[int, int]]] = {}
    for each in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        if fields := _read(f"/proc/{each}/stat").rpartition(")")[2].split():
            children.setdefault(int(fields[1]), []).append((int(each), sum(map(int, fields[11:15]))))
    ticks, parents = 0, [process]
    while parents:
        for child, own in children.get(parents.pop(), ()):
            ticks += own
            parents.append(child)
    return ticks / TICKS


def _read(file: str) -> str:
    try:
        return Path(file).read_text()
    except OSError:  # it has ended meanwhile
        return ""


class Seconds:
    """Counts in each process of a run; the one that starts the others adds up."""

    def __init__(self, config: pytest.Config):
        self.config = config
        self.whole = config.args_source is not config.ArgsSource.ARGS and not (
            config.option.keyword or config.option.markexpr
        )
        self.alone = config.getoption("dist", "no") != "no"  # what this process starts counts for itself
        self.looked = time.monotonic()
        self.last = 0.0
        self.files: Counter[str] = Counter()
        self.tests: Counter[str] = Counter()
        self.references = [reference()]
        self.remembered = 0

    def count(self, file: str) -> None:
        """What was taken since the last count, for a file."""
        now = taken(self.alone)
        self.files[file] += max(0.0, now - self.last)
        self.last = now

    def pytest_collection_finish(self) -> None:
        self.count(AROUND)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None):
        done = yield
        if nextitem is None or nextitem.path != item.path:
            self.count(item.nodeid.partition("::")[0])
        if time.monotonic() - self.looked > EVERY:
            self.looked = time.monotonic()
            self.references.append(reference())
        return done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tests[report.nodeid.partition("::")[0]] += report.when == "setup"
        self.remembered += getattr(report, "remembered", False)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self.count(AROUND)
        self.references.append(reference())
        if hasattr(self.config, "workerinput"):
            self.config.workeroutput["seconds"] = [dict(self.files), self.references]  # type: ignore[attr-defined]
        elif self.whole:
            WRITTEN.parent.mkdir(parents=True, exist_ok=True)
            WRITTEN.write_text(json.dumps(self.content(exitstatus), indent=1), encoding="utf-8")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node) -> None:
        """A worker of pytest-xdist is done."""
        files, references = getattr(node, "workeroutput", {}).get("seconds", ({}, []))
        self.files.update(files)
        self.references += references

    def content(self, exitstatus: int) -> dict:
        """The run as it is written."""
        return {
            "passed": exitstatus == 0,
            "remembered": self.remembered,
            "processes": len(self.config.getoption("tx", None) or [None]),
            "reference": sum(self.references) / len(self.references),
            "areas": self.areas(),
            "files": self.slowest(),
        }

    def areas(self) -> list[dict]:
        """Those with the most seconds first."""
        seconds: Counter[str] = Counter()
        tests: Counter[str] = Counter()
        for file in self.files:
            seconds[area_of(file)] += self.files[file]
            tests[area_of(file)] += self.tests[file]
        counted = seconds.most_common()
        return [{"name": name, "tests": tests[name] or None, "seconds": round(n, 1)} for name, n in counted]

    def slowest(self) -> list[dict]:
        listed = [(name, n) for name, n in self.files.most_common() if name != AROUND]
        return [{"name": name, "seconds": round(n, 1)} for name, n in listed[:SLOWEST]]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self.files) < 3:  # the collection and one file
            return
        terminalreporter.section("processor seconds by area, and the files that take most")
        for each in self.areas():
            tests = f", {each['tests']} tests" if each["tests"] else ""
            terminalreporter.line(f"{each['seconds']:9.1f}  {each['name']}{tests}")
        terminalreporter.line("")
        for each in self.slowest():
            terminalreporter.line(f"{each['seconds']:9.1f}  {each['name']}")

"""Interpreted, a kernel test that passed on the very same files and versions is not run again: a pytest plugin.

Such a test ends as "cached", and the run's summary counts them. `--fresh` runs every test. So does a run on a GPU, or
for a report. What passed stands in .cache/kernel-tests: a file of lines for each test file and content of all that the
test file depends on.
"""

import ast
import functools
import hashlib
import importlib
import os
import platform
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import torch

OURS = ("kernels", "snippets", "tests")
PACKAGES = ("torch", "triton", "numpy", "pytest")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fresh", action="store_true", help="run kernel tests, too, that passed on the same files")


def pytest_configure(config: pytest.Config) -> None:
    interpreted = os.environ.get("TRITON_INTERPRET") == "1" and not torch.cuda.is_available()
    if interpreted and "RIDGEPOINT_KERNELS" not in os.environ and not getattr(config.option, "report", None):
        config.pluginmanager.register(Cached(config.rootpath, config.getoption("--fresh")), "cached-kernel-tests")


class Cached:
    """Skips what passed before, and keeps what passes."""

    def __init__(self, root: Path, fresh: bool):
        self.root, self.fresh = root, fresh
        self.kept = functools.cache(self.kept)  # type: ignore[method-assign]
        self.outcomes: dict[str, set[str]] = {}

    def kept(self, test: Path) -> tuple[Path, frozenset[str]] | None:
        """Where the results of a test file are kept, and which of its tests have passed; None for another's tests."""
        if test.parent != self.root / "tests" / "kernels":
            return None
        file = self.root / ".cache" / "kernel-tests" / f"{test.stem}-{digest(self.root, test)}"
        last = {line[1:]: line[0] for line in file.read_text().splitlines()} if file.exists() else {}
        return file, frozenset(name for name, sign in last.items() if sign == "+")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        kept = self.kept(item.path)
        if kept and item.nodeid in kept[1] and not self.fresh:
            self.outcomes[item.nodeid] = {"cached"}
            pytest.skip("passed on the same files and versions")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        outcomes = self.outcomes.setdefault(item.nodeid, set())
        if outcomes == {"cached"}:
            report.cached = report.when == "setup"
        else:
            outcomes.add("xfailed" if hasattr(report, "wasxfail") else report.outcome)
            if report.when == "teardown" and (kept := self.kept(item.path)):
                keep(kept[0], item.nodeid, outcomes)
        return report

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        return ("cached", "c", "CACHED") if getattr(report, "cached", False) else None

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if count := len(terminalreporter.getreports("cached")):
            terminalreporter.write_line(
                f"{count} kernel tests passed before, on the same files and versions; --fresh runs them again"
            )


def keep(file: Path, test: str, outcomes: set[str]) -> None:
    """One line, written at once, for several processes write to a file; of two about a test the later one counts."""
    if outcomes == {"passed"} or "failed" in outcomes:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab", buffering=0) as lines:
            lines.write(f"{'+' if outcomes == {'passed'} else '-'}{test}\n".encode())


# ---- what a result depends on ---------------------------------------------------------------------------------------


def digest(root: Path, test: Path) -> str:
    """Of the kernel, its test, all of ours that they import or name, and the versions."""
    kernel = root / "kernels" / f"{test.stem.removeprefix('test_')}.py"
    # a test of no kernel in particular is one of all kernels, and of all tests
    source = kernel.with_name(f"{kernel.stem.removesuffix('_cuda')}.cu") if kernel.stem.endswith("_cuda") else kernel
    subjects = [kernel, source] if kernel.exists() else [*root.glob("kernels/*.py"), *root.glob("tests/kernels/*.py")]
    settings = [root / "pyproject.toml", root / "tests" / "conftest.py", root / "tests" / "kernels" / "conftest.py"]
    found = hashlib.sha256(repr(versions()).encode())
    for file in sorted(reached(root, [test, *subjects, *settings])):
        found.update(f"{file.relative_to(root)}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()[:32]


def versions() -> list[str]:
    packages = [f"{name} {importlib.import_module(name).__version__}" for name in PACKAGES]
    return [sys.version, platform.machine(), *packages]


def reached(root: Path, files: list[Path]) -> set[Path]:
    """The files, and all that can be reached from them by imports and by names of files."""
    found: set[Path] = set()
    waiting = [file for file in files if file.exists()]
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            waiting += named(root, file) if file.suffix == ".py" else []
    return found


@functools.cache
def named(root: Path, file: Path) -> list[Path]:
    """Files of ours that a module imports when it is imported, with their packages, or names in a string."""
    found: list[Path] = []
    for node in outside_of_functions(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for parts in [name.split(".") for name in names if name.split(".")[0] in OURS]:
            packages = [root.joinpath(*parts[:depth], "__init__.py") for depth in range(1, len(parts) + 1)]
            found += [*packages, root.joinpath(*parts).with_suffix(".py")]
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "/" in node.value:
            found += [root / node.value] if len(node.value) < 200 and "\n" not in node.value else []
    return [path for path in found if path.is_file()]


def outside_of_functions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from outside_of_functions(child)

"""A test that passed is not run again on this machine while all that it reaches is what it was: a pytest plugin.

A test file reaches what it imports, within functions too, and the files and folders that its strings name, and so on
from there; those of the site reach all, and are remembered by what they were served, too (tests/site/conftest.py).
Such a test ends as "remembered", and the run's summary counts them. One in twenty runs anyway, drawn anew each time:
first a fifth of the files, then of their tests, long ones less often than short ones. `--fresh` runs every test; so
does a run on a GPU, or for a report. What passed stands in .cache/remembered: for each test file and each content of
all that it reaches a file of lines. A file that a test read and does not reach is named at the end of the run, and its
tests are not remembered.
"""

import functools
import hashlib
import json
import os
import platform
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from importlib import metadata
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.benchmarks.reached import below, is_ours, reached

FOLDER = ".cache/remembered"
PACKAGES = ("torch", "triton", "numpy", "pytest")
DECIDES = re.compile(r"(?!.*_CACHE_DIR$)(ATEN|PYTORCH|TORCH|TRITON)|PYTHONPATH$")  # variables that change what runs
WHOLE = ("mutants", "site")  # areas whose tests look at everything
COMPILED = re.compile(r"__pycache__/([^/.]+)\.[^/]*$")  # what an import opens of a module that was imported before
AGAIN = 0.06  # chance that what is remembered runs anyway: 1 in 20 of all, since long tests have less
FILES = 0.2  # share of the test files from which such tests are drawn: what they share is made for these alone
LONG = 0.3  # seconds; what took n times as long has 1/n of that chance
FORM = 2  # of what is kept: files of an earlier one are not read
KEPT = 4  # contents of what a test file reaches whose results are kept


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fresh", action="store_true", help="run tests, too, that passed on the same files and versions")


def pytest_configure(config: pytest.Config) -> None:
    chosen = any(getattr(config.option, name, None) for name in ("report", "mine"))  # a report, a reader's own file
    if "RIDGEPOINT_KERNELS" not in os.environ and not chosen and not on_gpu():
        config.pluginmanager.register(Remembered(config.rootpath, config.getoption("--fresh")), "remembered-tests")


def on_gpu() -> bool:
    """Where results may depend on more than files: the device, what else runs on it."""
    torch = sys.modules.get("torch")  # tests/conftest.py has imported it
    return bool(torch and torch.cuda.is_available())


@functools.cache
def watching() -> list[Callable]:
    """Who is told of each file that this process opens.

    By one hook: none can be removed, and each is called for every `id`. It is a function, as a method takes longer.
    """
    told: list[Callable] = []
    sys.addaudithook(lambda event, given: [watch(*given) for watch in told] if event == "open" else None)
    return told


class Remembered:
    """Skips what passed before, and keeps what passes."""

    def __init__(self, root: Path, fresh: bool):
        self.root, self.fresh = root, fresh
        self.folder = root / FOLDER
        self.outcomes: dict[str, set[str]] = {}
        self.took: Counter[str] = Counter()  # seconds, with what was set up for a test
        self.opened: set[str] = set()
        self.missing: dict[str, set[str]] = {}
        self.served: dict[str, Callable[..., None]] = {}  # by test: keeps what it was served, or forgets it
        self.code = functools.cache(functools.partial(reached_by_code, root))
        self.known = functools.cache(self.known)  # type: ignore[method-assign]
        self.drawn = functools.cache(lambda test: random.SystemRandom().random() < FILES)

    def pytest_sessionstart(self) -> None:
        watching().append(self.watch)

    def pytest_unconfigure(self) -> None:
        if self.watch in watching():
            watching().remove(self.watch)

    def watch(self, file: object, mode: object, flags: int) -> None:
        """Note each file of ours that is opened to be read."""
        if isinstance(file, str) and not flags & (os.O_WRONLY | os.O_RDWR):
            path = COMPILED.sub(r"\1.py", os.path.abspath(file))
            if path.startswith(f"{self.root}/"):
                self.opened.add(path)

    def known(self, test: Path) -> tuple[Path, dict[str, float], set[Path]]:
        """Where the results of a test file are kept, the seconds of its tests that passed, and the files it reaches."""
        files = reached_by_test(self.root, test)
        name = test.relative_to(self.root).with_suffix("").as_posix().replace("/", ".")
        file = self.folder / f"{name}-{digest(self.root, files)}"
        lines = [line.split(" ", 2) for line in file.read_text().splitlines()] if file.exists() else []
        last = {name: (sign, float(seconds)) for sign, seconds, name in lines}
        return file, {name: seconds for name, (sign, seconds) in last.items() if sign == "+"}, files

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        passed = self.known(item.path)[1]
        self.opened.clear()  # what the key itself is made of
        if not self.fresh and item.nodeid in passed and not self.again(item.path, passed[item.nodeid]):
            self.leave_out(item.nodeid)

    def again(self, file: Path, seconds: float = 0.0) -> bool:
        """Whether a remembered test of this file runs anyway, that took so long before."""
        return self.drawn(file) and again(seconds, AGAIN / FILES)

    def leave_out(self, test: str) -> None:
        """End a test before it begins: it is remembered."""
        self.outcomes[test] = {"remembered"}
        pytest.skip("passed on the same files and versions")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        outcomes = self.outcomes.setdefault(item.nodeid, set())
        if outcomes == {"remembered"}:
            report.remembered = report.when == "setup"
            return report
        outcomes.add("xfailed" if hasattr(report, "wasxfail") else report.outcome)
        self.took[item.nodeid] += report.duration
        if report.when == "teardown":
            file, _, files = self.known(item.path)
            if unforeseen := self.unforeseen(files):
                report.user_properties.append(("unforeseen", sorted(unforeseen)))
            keep(file, item.nodeid, {"failed"} if unforeseen else outcomes, self.took[item.nodeid])
            if end := self.served.pop(item.nodeid, None):
                end(faultless=outcomes == {"passed"} and not self.unforeseen(self.code(item.path)))
        return report

    def unforeseen(self, files: set[Path]) -> set[str]:
        """The files of the checkout that a test has read and that its file does not reach."""
        paths = (Path(path) for path in self.opened)
        unknown = {path for path in paths if path not in files and is_ours(self.root, path) and path.is_file()}
        return {path.relative_to(self.root).as_posix() for path in unknown}

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        return ("remembered", "m", "REMEMBERED") if getattr(report, "remembered", False) else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, files in report.user_properties if report.when == "teardown" else ():
            if name == "unforeseen":
                self.missing.setdefault(report.nodeid.partition("::")[0], set()).update(files)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if count := len(terminalreporter.getreports("remembered")):
            terminalreporter.write_line(
                f"{count} tests passed before, on the same files and versions; --fresh runs them"
            )
        for test, files in sorted(self.missing.items()):
            listed = ", ".join(sorted(files)[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
            terminalreporter.write_line(f"not remembered: {test} reads what it does not name: {listed}")


def again(seconds: float, chance: float) -> bool:
    """Whether what is remembered runs anyway, and took so long before."""
    return random.SystemRandom().random() < chance * LONG / max(seconds, LONG)


def keep(file: Path, test: str, outcomes: set[str], seconds: float) -> None:
    """One line, written at once, for several processes write to a file; of two about a test the later one counts."""
    if outcomes == {"passed"} or "failed" in outcomes:
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            forget(file)
        with file.open("ab", buffering=0) as lines:
            lines.write(f"{'+' if outcomes == {'passed'} else '-'} {seconds:.2f} {test}\n".encode())


def forget(file: Path) -> None:
    """Remove the oldest results of what a file had been before."""
    name = file.name.rpartition("-")[0]
    for old in sorted(file.parent.glob(f"{name}-*"), key=lambda path: path.stat().st_mtime)[: -KEPT + 1]:
        old.unlink(missing_ok=True)


# ---- what a script printed ------------------------------------------------------------------------------------------


def printed_by(root: Path, module: str, *more: str) -> Path:
    """Where the end of a script is kept, for the content of all that it reaches and for `more`."""
    base = root.joinpath(*module.split("."))
    sources = [base.with_suffix(".py"), base / "__init__.py", base / "__main__.py"]  # of a module, or of a package
    return root / FOLDER / f"{module}-{digest(root, reached(root, sources), *more)}"


def once(shared: Path, fresh: bool, key: Path, run: Callable[[], CompletedProcess[str]]) -> CompletedProcess[str]:
    """What `run()` returned for this key: in this run of the tests, or in an earlier one, where it ended well.

    Args:
        shared: a folder of this run, the same for all of its processes.
        fresh: nothing of an earlier run counts.
    """
    from filelock import FileLock  # comes with torch

    kept = shared / f"{key.name}.json"
    with FileLock(f"{kept}.lock"):
        if not kept.exists():
            text = key.read_text(encoding="utf-8") if key.exists() and not fresh else ""
            if not text or again(json.loads(text)["seconds"], AGAIN):
                text = timed(run)
                if json.loads(text)["ended"]["returncode"] == 0:
                    write(key, text)
            kept.write_text(text, encoding="utf-8")
    return CompletedProcess(**json.loads(kept.read_text(encoding="utf-8"))["ended"])


def timed(run: Callable[[], CompletedProcess[str]]) -> str:
    """How a script ended, and after how many seconds."""
    began = time.monotonic()
    ended = vars(run())
    return json.dumps({"seconds": time.monotonic() - began, "ended": ended})


def write(file: Path, text: str) -> None:
    """Write a file whole or not at all, in place of the oldest of its name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    forget(file)
    part = file.with_name(f".{file.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(file)


# ---- what a result depends on ---------------------------------------------------------------------------------------


def reached_by_test(root: Path, test: Path) -> set[Path]:
    """All files that the tests of a file depend on."""
    area = test.relative_to(root).parts[1:-1]
    if area and area[0] in WHOLE:
        return {path for path in below(root) if is_ours(root, path)}
    return reached_by_code(root, test)


def reached_by_code(root: Path, test: Path) -> set[Path]:
    """All files that the tests of a file depend on, but for what a site was built from."""
    above = [folder / "conftest.py" for folder in test.parents if folder.is_relative_to(root)]
    return reached(root, [test, *above, root / "pyproject.toml", *subjects(root, test)])


def subjects(root: Path, test: Path) -> list[Path]:
    """What a test is named after: tests/kernels/test_rope_cuda.py after kernels/rope_cuda.py and rope.cu."""
    folder, name = root.joinpath(*test.relative_to(root).parts[1:-1]), test.stem.removeprefix("test_")
    if folder == root / "exercises":
        return list(root.glob(f"snippets/**/{name}_*s.py"))  # solutions, and what readers begin with
    named = [folder / f"{name}{ending}" for ending in (".py", ".yml")] + [folder / f"{name.removesuffix('_cuda')}.cu"]
    if folder == root / "kernels" and not named[0].exists():  # a test of no kernel in particular is one of all
        return [*below(folder), *below(root / "tests" / "kernels")]
    return named


def digest(root: Path, files: Iterable[Path], *more: str) -> str:
    """Of the files' names and content, the versions, the processor's instructions and the variables that decide."""
    found = hashlib.sha256(repr([FORM, surroundings(), *more]).encode())
    for file in sorted(files):
        found.update(f"{file.relative_to(root)}\0{content(file)}".encode())
    return found.hexdigest()[:32]


@functools.cache
def content(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@functools.cache
def surroundings() -> list[str]:
    """What a result depends on beside files."""
    torch = sys.modules.get("torch")
    instructions = torch.backends.cpu.get_cpu_capability() if torch else ""
    packages = [f"{name} {metadata.version(name)}" for name in PACKAGES]
    variables = [f"{name}={value}" for name, value in sorted(os.environ.items()) if DECIDES.match(name)]
    return [sys.version, platform.machine(), instructions, *packages, *variables]

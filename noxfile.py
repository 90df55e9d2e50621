"""The project's commands; `nox -l` lists them. All of them run in one environment, which the first one installs."""

import contextlib
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["docs"]

PYTHONS = ("3.11", "3.12", "3.13")  # on which tests ran
PINS = Path("constraints.txt")
SITE = Path("site")
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SETTINGS = {
    "TORCHINDUCTOR_CACHE_DIR": str(Path(".cache/inductor").absolute()),  # a first torch.compile takes half a minute
    "TRITON_CACHE_DIR": str(Path(".cache/triton").absolute()),
    "NO_MKDOCS_2_WARNING": "1",
    "PYTHONUTF8": "1",  # as all files are written, whatever the locale
}
shared: dict[str, str] = {}  # "python": the environment's interpreter, known once `environment` has run


@nox.session(reuse_venv=True)
def environment(session: nox.Session) -> None:
    """Install what the others share; instant while constraints.txt stays as it is."""
    promised, found = f"Python {PYTHONS[0]} to {PYTHONS[-1]}", "{}.{}".format(*sys.version_info)
    if sys.version_info[:2] < tuple(map(int, PYTHONS[0].split("."))):
        session.error(f"expected {promised}, got {found}: start nox with another Python")
    if found not in PYTHONS:
        session.warn(f"tests ran on {promised}, and on {found} none")
    shared["python"] = f"{session.bin}/python"
    stamp = Path(session.bin).parent / "installed"
    wanted = hashlib.sha256(PINS.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        session.log(f"{PINS} has not changed: nothing to install")
        return
    session.install("-r", str(PINS), silent=False)  # minutes and gigabytes for a CUDA build: show it
    stamp.write_text(wanted)


@nox.session(python=False, requires=["environment"])
def docs(session: nox.Session) -> None:
    """Measure here, build the site. `-- CASE…` measures only those; `-- --release` nothing, and refuses stale."""
    check(session)
    with counted(session):
        run(session, "docs.publish.site", *session.posargs)
    session.log(f"the site is in {SITE.absolute()}; to look at it:")
    session.log(f"  python3 -m http.server --directory {SITE} 8000   and open http://localhost:8000")


@nox.session(python=False, requires=["environment"])
def tests(session: nox.Session) -> None:
    """Run every test, in as many processes as there are cores. `-- ARGUMENTS` go to pytest."""
    check(session)
    if not any(map(shutil.which, CHROMIUM)):  # where this fails too, the browser tests say what to install
        run(session, "playwright", "install", "chromium", success_codes=(0, 1))
    with counted(session):
        run(session, "pytest", f"--numprocesses={cores()}", "--dist=worksteal", *session.posargs)


@nox.session(python=False, requires=["environment"])
def mutants(session: nox.Session) -> None:
    """Plant known faults in copies of the tree: the tests must fail. `-- --list` shows them, `-- NAME…` picks some."""
    check(session)
    run(session, "tests.mutants", *session.posargs)


@nox.session(python=False, requires=["environment"])
def serve(session: nox.Session) -> None:
    """Show the site at http://localhost:8000 and rebuild it on every change. `-- PAGE` builds that page alone."""
    page = session.posargs[:1] if session.posargs and not session.posargs[0].startswith("-") else []
    options = session.posargs[len(page) :]
    settings = {"SITE_URL": "http://localhost:8000/", "RIDGEPOINT_PAGE": "".join(page)}
    run(session, "mkdocs", "serve", "--livereload", *options, **settings)


@nox.session(python=False, requires=["environment"])
def bench(session: nox.Session) -> None:
    """Measure into docs/measurements/local. `-- --list` shows the cases, `-- CASE…` picks some."""
    run(session, "tests.benchmarks", *session.posargs)


@nox.session(python=False, requires=["environment"])
def record(session: nox.Session) -> None:
    """Make what pages show of scripts' output again on this CPU, and show what changed. `-- NAME…` picks some."""
    check(session)
    run(session, "docs.publish.site.record", *session.posargs)


@nox.session(python=False, requires=["environment"])
def lint(session: nox.Session) -> None:
    """Check format, lint and types. `-- --fix` mends the first two."""
    fix = "--fix" in session.posargs
    with counted(session):
        run(session, "ruff", "format", *([] if fix else ["--check"]), ".")
        run(session, "ruff", "check", *(["--fix"] if fix else []), ".")
        run(session, "mypy")


@nox.session(python=False, requires=["environment"])
def budget(session: nox.Session) -> None:
    """Hold what tests, lint and docs took just now against tests/budget.toml. `-- --publish` records it."""
    run(session, "tests.budget", *session.posargs)


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def counted(session: nox.Session) -> Iterator[None]:
    """Leave what a session takes in .cache/seconds, for `budget`: by the clock, and of processors."""
    file = Path(".cache/seconds") / f"{session.name}.json"
    file.unlink(missing_ok=True)
    clock, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    yield
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"seconds": round(time.monotonic() - clock, 1), "processor": round(processor, 1)}))


def run(session: nox.Session, module: str, *arguments: str, success_codes: tuple[int, ...] = (0,), **env: str) -> None:
    """Run a module in the shared environment. After Ctrl-C it has time to end what it began, and to say so."""
    command = [shared["python"], "-m", module, *arguments]
    ends = {"interrupt_timeout": 30.0, "terminate_timeout": 5.0}
    session.run(*command, env=SETTINGS | env, success_codes=success_codes, external=True, **ends)


def check(session: nox.Session) -> None:
    """Stop with one line where this machine cannot run the project."""
    done = subprocess.run([shared["python"], "-m", "snippets.environment"], capture_output=True, text=True)
    if done.returncode:
        session.error(done.stdout.strip() or done.stderr)

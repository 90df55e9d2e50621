"""`nox -s docs`: the site from what is known, then measurements for a while, then the site with them.

    python -m docs.publish.site               # all of it; nothing, where nothing has changed
    python -m docs.publish.site CASE ...      # measure these cases, however long they take, and build
    python -m docs.publish.site --release     # build from committed records alone, and refuse what is stale

Each step keeps what it has done, so after an interruption the next run goes on.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from docs.publish import kept
from docs.publish.site import inputs
from tests.benchmarks.source import ROOT

SITE, STAMP = Path("site"), Path(".cache/site.json")
SECONDS = 150  # of measuring: with two cores, enough for the first point of nearly every case
PATIENCE = 25  # seconds in which programs end after Ctrl-C, and say what they have kept
BUILD = ("mkdocs", "build", "--strict", "--quiet")
REST = "`nox -s bench -- --skip-fresh` measures the points that are missing"
began = time.monotonic()


class Failed(Exception):
    """A program failed, and has said why; holds its exit status."""


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="nox -s docs --", description="Measure here, then build the site.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="measure only these; `nox -s bench -- --list` has all")
    parser.add_argument("--release", action="store_true", help="measure nothing, and refuse stale numbers")
    options = parser.parse_args(arguments)
    settings = {**os.environ, "RIDGEPOINT_RELEASE": "1"} if options.release else dict(os.environ)
    try:
        docs(ROOT, options.cases, options.release, settings, run)
    except Failed as error:
        return int(error.args[0])
    except KeyboardInterrupt:
        print("interrupted: what was done is kept; `nox -s docs` goes on", file=sys.stderr)
        return 130
    return 0


def docs(
    root: Path, cases: Sequence[str], release: bool, settings: Mapping[str, str], start: Callable[..., None]
) -> None:
    """All steps, each of which is started by `start`.

    Raises:
        Failed: a step failed.
    """
    measured = release or (not cases and bool(_stamp(root).get("measured")))
    if measured and is_fresh(root, settings):
        print(f"nothing changed: the site is as it was{'' if release else f'; {REST}'}", flush=True)
        return
    if cases:
        start(("tests.benchmarks", "--skip-fresh", *cases), settings=settings)
    say("notebooks and compiled kernels; the first time this takes two minutes")
    start(("docs.publish.compiled",), ("docs.publish.site.notebooks",), settings=settings)
    build(root, settings, start)
    if not cases and not release:
        say(f"the site stands; measuring for {SECONDS} s, then it is built again with these numbers")
        start(("tests.benchmarks", "--skip-fresh", "--first", f"--seconds={SECONDS}"), settings=settings)
        build(root, settings, start)
        kept.write(root / STAMP, json.dumps(_stamp(root) | {"measured": True}))


def build(root: Path, settings: Mapping[str, str], start: Callable[..., None]) -> None:
    """Build the site, unless it is what a build from the same inputs wrote."""
    if is_fresh(root, settings):
        return
    say("building the site")
    (root / STAMP).unlink(missing_ok=True)  # until the build has ended well
    before = state(root, settings)
    start(BUILD, settings=settings)
    if state(root, settings) == before:  # nobody has edited meanwhile
        kept.write(root / STAMP, json.dumps({"inputs": before, "site": written(root / SITE)}))


def is_fresh(root: Path, settings: Mapping[str, str]) -> bool:
    """Whether the site is what a build would write now."""
    last = _stamp(root)
    return bool(last) and last.get("inputs") == state(root, settings) and last.get("site") == written(root / SITE)


def state(root: Path, settings: Mapping[str, str]) -> str:
    """What the site depends on, and the machine: another one has other numbers."""
    facts = [inputs.digest(root, settings), platform.machine(), str(os.cpu_count())]
    with contextlib.suppress(OSError):
        facts += sorted({line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line})
    if shutil.which("nvidia-smi"):
        facts.append(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout)
    return kept.key(facts)


def written(folder: Path) -> str:
    """A hash of all files in a folder, with their names."""
    return inputs.contents(sorted(path for path in folder.rglob("*") if path.is_file()), folder)


def _stamp(root: Path) -> dict:
    """What the last build that ended well has kept of itself."""
    try:
        last = json.loads((root / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return last if isinstance(last, dict) else {}


def say(what: str) -> None:
    """A line for whoever waits, with the time since the start."""
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    print(f"[{minutes}:{seconds:02}] {what}", file=sys.stderr, flush=True)


def run(*modules: Sequence[str], settings: Mapping[str, str]) -> None:
    """Run modules side by side.

    Raises:
        Failed: one of them failed; the others end first.
    """
    programs = [subprocess.Popen([sys.executable, "-m", *module], cwd=ROOT, env=settings) for module in modules]
    try:
        statuses = [program.wait() for program in programs]
    except KeyboardInterrupt:  # the terminal has told them as well
        last = time.monotonic() + PATIENCE
        for program in programs:
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(max(0, last - time.monotonic()))
        raise
    finally:
        for program in programs:
            program.terminate()
    if failed := [status for status in statuses if status]:
        raise Failed(failed[0])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and end what was started
    sys.exit(main(sys.argv[1:]))

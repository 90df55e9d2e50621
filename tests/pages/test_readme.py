"""What the README promises: its commands, its sessions, and one line where the machine lacks something."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from unittest import mock

import pytest

import noxfile
from docs.publish.markdown.fences import blocks_of
from tests.benchmarks.source import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PINS = (ROOT / "constraints.txt").read_text(encoding="utf-8")
COMMANDS = [block.body for block in blocks_of(README, "README.md") if block.language == "sh"]


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python from the root."""
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=1800
    )


def sessions() -> dict[str, str]:
    """The sessions and their lines, as `nox -l` shows them."""
    listing = run("-m", "nox", "-l").stdout
    return dict(re.findall(r"^[*-] (\w+)(?: -> (.+))?$", listing, re.M))


def test_the_two_commands():
    assert [command.rpartition("nox -s ")[2] for command in COMMANDS if "nox -s" in command] == ["docs", "tests"]


def test_ci_runs_the_readme():
    ci = (ROOT / ".ci" / "run").read_text().splitlines()
    assert next(command for command in COMMANDS if command.endswith("nox -s tests")) in ci
    assert "bash .ci/run" in (ROOT / ".github" / "workflows" / "site.yml").read_text()


def test_the_readme_installs_the_pinned_nox():
    assert set(re.findall(r"nox==([\d.]+)", README)) == set(re.findall(r"^nox==([\d.]+)", PINS, re.M))


def test_nox_lists_every_session_with_a_line():
    listed = sessions()
    assert {"docs", "tests", "serve", "bench", "lint"} <= listed.keys()
    assert all(listed.values()), listed


@pytest.mark.parametrize(("given", "page"), [(["compiler/modes", "-q"], "compiler/modes"), (["-q"], ""), ([], "")])
def test_serve_builds_the_named_page_alone(given: list[str], page: str, monkeypatch: pytest.MonkeyPatch):
    started = mock.Mock()
    monkeypatch.setattr(noxfile, "run", started)
    noxfile.serve(mock.Mock(posargs=given))
    assert started.call_args.args[1:] == ("mkdocs", "serve", "--livereload", *(["-q"] * ("-q" in given)))
    assert started.call_args.kwargs["RIDGEPOINT_PAGE"] == page


def test_the_readme_names_only_what_exists():
    named = set(re.findall(r"`((?:docs|snippets|kernels|tests|\.ci|\.github)/?[\w./-]*)`", README))
    missing = [name for name in named if not (ROOT / name).exists() and name not in sessions()]
    assert not missing


# ---- a machine that lacks something: one line, no traceback (more in tests/snippets/test_environment.py) ----------


def no_compiler(folder: Path) -> dict[str, str]:
    return {"PATH": str(folder), "CXX": ""}


def no_headers(folder: Path) -> dict[str, str]:
    (folder / "sitecustomize.py").write_text(
        "import sysconfig\n"
        "real = sysconfig.get_path\n"
        f"sysconfig.get_path = lambda name, *rest: {str(folder)!r} if name == 'include' else real(name, *rest)\n"
    )
    return {"PYTHONPATH": str(folder)}


def old_torch(folder: Path) -> dict[str, str]:
    info = folder / "torch-2.4.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.4.0\n")
    return {"PYTHONPATH": str(folder)}


FAULTS = [
    (no_compiler, r"C\+\+ compiler.*found none"),
    (no_headers, r"Python's headers.*Python\.h, found none"),
    (old_torch, r"expected torch 2\.\d+ to 2\.\d+, found 2\.4\.0"),
]


@pytest.mark.parametrize(("fault", "line"), FAULTS)
def test_the_sessions_end_with_that_line(fault, line: str, tmp_path: Path):
    """nox prints a session's error as `Session docs aborted: …`."""
    noxfile.shared["python"] = sys.executable
    session = mock.Mock()
    session.error.side_effect = SystemExit
    with mock.patch.dict(os.environ, fault(tmp_path)), pytest.raises(SystemExit):
        noxfile.check(session)
    (message,) = session.error.call_args.args
    assert re.search(line, message)
    assert "Traceback" not in message


def test_an_unsupported_python_ends_with_one_line():
    session = mock.Mock()
    session.error.side_effect = SystemExit
    with mock.patch.object(noxfile.sys, "version_info", (3, 10, 4)), pytest.raises(SystemExit):
        noxfile.environment(session)
    session.error.assert_called_once_with("expected Python 3.11 to 3.13, got 3.10: start nox with another Python")


def test_a_newer_python_is_told_that_nothing_ran_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    session = mock.Mock(bin=str(tmp_path / "bin"))
    newer = mock.patch.object(noxfile.sys, "version_info", (3, 99, 0))
    with newer, mock.patch.dict(noxfile.shared):
        noxfile.environment(session)
    session.warn.assert_called_once_with("tests ran on Python 3.11 to 3.13, and on 3.99 none")
    session.install.assert_called_once()


def test_the_same_pythons_are_promised_everywhere():
    """By the README and the pages, to the tools that check for the oldest, and by the workflow."""
    oldest, newest = noxfile.PYTHONS[0], noxfile.PYTHONS[-1]
    texts = [README, *(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "pages").rglob("*.md"))]
    assert set(re.findall(r"Python (3\.\d+) to (3\.\d+)", "".join(texts))) == {(oldest, newest)}
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    assert tools["mypy"]["python_version"] == oldest
    assert tools["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"
    workflow = (ROOT / ".github" / "workflows" / "site.yml").read_text(encoding="utf-8")
    assert set(re.findall(r'python-version: "([\d.]+)"', workflow)) <= set(noxfile.PYTHONS)

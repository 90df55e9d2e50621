"""What is missing on a machine is said in one line, before anything fails for want of it."""

import importlib.metadata
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from snippets import environment
from tests.benchmarks.source import ROOT


def pretend(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version if name == "torch" else real(name))


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "2.15.3", "2.12.0a0+git1234"])
def test_supported_torch(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    pretend(monkeypatch, version)
    assert environment.torch_problem() is None


@pytest.mark.parametrize("version", ["2.10.1", "1.13.0", "2.16.0.dev20261101", "3.0.0", "2.9"])
def test_unsupported_torch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], version: str) -> None:
    pretend(monkeypatch, version)
    with pytest.raises(SystemExit) as caught:
        environment.require()
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"expected torch 2.11 to 2.15, found {version}\n"


def test_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    assert environment.torch_problem() == "expected torch 2.11 to 2.15, found none: install it as the README says"


def test_a_compiler_and_headers_are_here() -> None:
    assert environment.compiler_problem() is None


def test_no_python_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    problem = environment.compiler_problem()
    assert problem and problem.startswith(
        f"torch.compile needs Python's headers: expected {tmp_path}/Python.h, found none"
    )


def run(module: str, *arguments: str, **changed: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, env=os.environ | changed, capture_output=True, text=True, timeout=1800)


def test_no_compiler_where_a_snippet_compiles() -> None:
    """One line and no traceback; a snippet that compiles nothing runs all the same."""
    done = run("snippets.first_speedup", CXX="no-such-compiler")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("torch.compile needs a C++ compiler: expected no-such-compiler, found none")
    assert run("snippets.validation.timing", CXX="no-such-compiler").returncode == 0


def test_the_check_as_a_command() -> None:
    assert run("snippets.environment").returncode == 0
    done = run("snippets.environment", CXX="no-such-compiler")
    assert done.returncode == 1
    assert done.stdout.startswith("torch.compile needs a C++ compiler")


def test_an_unsupported_torch_stops_the_runner_and_a_snippet(tmp_path: Path) -> None:
    """A torch of another version, first on the path, that must not even be imported."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "torch-2.5.1.dist-info").mkdir()
    (tmp_path / "torch-2.5.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.5.1\n")
    for module in ("tests.benchmarks", "snippets.validation.timing_mistakes"):
        done = run(module, PYTHONPATH=str(tmp_path))
        assert (done.returncode, done.stderr) == (2, "expected torch 2.11 to 2.15, found 2.5.1\n")

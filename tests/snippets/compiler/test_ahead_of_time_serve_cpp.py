"""That the page's shell command and the script's build are one."""

import os
import subprocess
import sys
from pathlib import Path

from snippets.compiler import ahead_of_time_serve_cpp


def test_the_shells_line_builds_as_the_script_does(monkeypatch, tmp_path):
    """A stand-in for g++ says what it was called with."""
    given: list[str] = []
    monkeypatch.setattr(ahead_of_time_serve_cpp, "DEVICE", "cpu")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(ahead_of_time_serve_cpp.subprocess, "run", lambda command, check: given.extend(command))
    ahead_of_time_serve_cpp.compile_server(tmp_path)
    (tmp_path / "g++").write_text('#!/bin/sh\nprintf "%s\\n" g++ "$@"\n')
    (tmp_path / "g++").chmod(0o755)
    monkeypatch.undo()
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    line = Path(ahead_of_time_serve_cpp.__file__).with_suffix(".sh")
    done = subprocess.run(
        ["sh", "-eu", line], env=os.environ | {"PATH": path}, capture_output=True, text=True, check=True
    )
    assert sorted(done.stdout.split()) == sorted(part.removeprefix(f"{tmp_path}/") for part in given)

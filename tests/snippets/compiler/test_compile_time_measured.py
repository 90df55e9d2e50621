"""What a new process is told, and how its failure is said."""

import pytest

from snippets.compiler import compile_time_measured
from snippets.compiler.compile_time_model import SIZES

READ = "tests/benchmarks/captures.py", "tests/forked.py"  # to run the script in


def test_a_new_process_is_told_of_its_cache_and_of_no_other(monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    variables = compile_time_measured.environment("/here", TORCHINDUCTOR_COMPILE_THREADS="1")
    told = {name: value for name, value in variables.items() if name.startswith(("TORCH", "TRITON"))}
    assert told == {"TORCHINDUCTOR_CACHE_DIR": "/here", "TORCHINDUCTOR_COMPILE_THREADS": "1"}


def test_a_process_that_fails_is_said_in_one_line(tmp_path, monkeypatch, forked):
    monkeypatch.setattr(compile_time_measured.subprocess, "run", lambda command, **_: forked(command[1:]))
    with pytest.raises(RuntimeError, match=r"^whole, 1 layers: FileNotFoundError.*missing"):
        compile_time_measured.measured("whole", 1, SIZES["cpu"], str(tmp_path), load=str(tmp_path / "missing"))

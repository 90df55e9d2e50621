"""tests/kernels/cached.py: a test is not run again only while all that it depends on is what it was."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.kernels import cached

pytest_plugins = ["pytester"]
TEST = """
import pytest
from snippets.helper import ONE

def test_it():
    from kernels.toy import answer
    assert answer == ONE

def test_skipped():
    pytest.skip("always")

@pytest.mark.xfail
def test_expected_to_fail():
    assert False

@pytest.fixture
def broken():
    yield
    assert False

def test_broken_in_the_end(broken):
    pass

def test_figure():
    assert open("docs/figure.svg").read()
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A kernel with its test, a helper that the test imports, and a figure that it reads."""
    files = {
        "pyproject.toml": "[tool.pytest.ini_options]\npythonpath = ['.']\n",
        **dict.fromkeys((f"{folder}/__init__.py" for folder in ("kernels", "snippets", "tests", "tests/kernels")), ""),
        "kernels/toy.py": "answer = 1\n",
        "kernels/other.py": "answer = 2\n",
        "snippets/helper.py": "ONE = 1\n",
        "tests/kernels/test_toy.py": TEST,
        "tests/kernels/test_other.py": "def test_other():\n    pass\n",
        "docs/figure.svg": "<svg/>",
    }
    for name, text in files.items():
        (pytester.path / name).parent.mkdir(parents=True, exist_ok=True)
        (pytester.path / name).write_text(text)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.delenv("RIDGEPOINT_KERNELS", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in [name for name in sys.modules if name.split(".")[0] in cached.OURS]:
        monkeypatch.delitem(sys.modules, name)
    return pytester


@pytest.fixture
def run(project: pytest.Pytester) -> Callable[..., dict[str, int]]:
    """How many tests ended how."""

    def finished(*arguments: str) -> dict[str, int]:
        cached.named.cache_clear()
        return project.runpytest_inprocess(*arguments, plugins=[cached]).parseoutcomes()

    return finished


NEVER = {"skipped": 1, "xfailed": 1, "errors": 1}  # are kept; beside them, a test that passes until its end


def test_what_passed_is_not_run_again_and_is_counted(run):
    assert run() == {"passed": 4, **NEVER}
    assert run() == {"passed": 1, "cached": 3, **NEVER}
    assert run("--fresh") == {"passed": 4, **NEVER}
    assert run("-k", "test_it") == {"cached": 1, "deselected": 5}


@pytest.mark.parametrize(
    "file, runs",
    (
        ("kernels/toy.py", 3), ("tests/kernels/test_toy.py", 3), ("snippets/helper.py", 3), ("docs/figure.svg", 3),
        ("pyproject.toml", 4), ("kernels/other.py", 2),
    ),
)  # fmt: skip
def test_a_changed_file_runs_what_depends_on_it(file, runs, run, project):
    run()
    with (project.path / file).open("a") as text:
        text.write("\n" if file.endswith("svg") else "# another\n")
    assert run()["passed"] == runs


def test_other_versions_run_all(run, monkeypatch):
    run()
    monkeypatch.setattr(cached, "versions", lambda: ["torch 3"])
    assert run() == {"passed": 4, **NEVER}


def test_a_failure_is_never_kept_and_ends_what_was(run, project, monkeypatch):
    (project.path / "kernels" / "toy.py").write_text("import os\nanswer = int(os.environ['ANSWER'])\n")
    for answer, arguments, expected in (
        ("2", (), "failed"), ("2", (), "failed"), ("1", (), "passed"), ("2", (), "cached"),
        ("2", ("--fresh",), "failed"), ("1", (), "passed"), ("1", (), "cached"),
    ):  # fmt: skip
        monkeypatch.setenv("ANSWER", answer)
        for name in ("kernels.toy", "kernels"):
            sys.modules.pop(name, None)
        assert run("-k", "test_it", *arguments) == {expected: 1, "deselected": 5}


def test_what_is_not_interpreted_or_a_copy_is_always_run(run, monkeypatch):
    run()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "cached" not in run()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("RIDGEPOINT_KERNELS", "elsewhere")
    assert "cached" not in run()


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU nothing is kept")
def test_several_processes_write(project):
    shutil.copy(Path(cached.__file__), project.path / "plugin.py")
    arguments = ("-p", "plugin", "-n", "2", "--dist=worksteal")
    pytest.importorskip("xdist")
    for expected in ({"passed": 4, **NEVER}, {"passed": 1, "cached": 3, **NEVER}):
        done = project.runpytest_subprocess(*arguments)
        assert done.parseoutcomes() == expected
    done.stdout.fnmatch_lines("3 kernel tests passed before, *--fresh runs them again")


def test_it_reaches_what_a_kernels_tests_depend_on():
    root = Path(__file__).parents[2]
    found = {str(path.relative_to(root)) for path in cached.reached(root, [root / "tests/kernels/test_rope.py"])}
    assert found >= {
        "tests/kernels/promises.py", "tests/kernels/conftest.py", "tests/kernels/interpreter.py",
        "tests/kernels/compiled.py", "tests/benchmarks/sides.py", "snippets/validation/equivalence.py",
        "snippets/validation/compiled_code.py",
    }  # fmt: skip
    assert not any(path.startswith("kernels/rms_norm") for path in found)

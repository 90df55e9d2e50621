"""tests/remembered.py: a test is not run again only while all that it depends on is what it was."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

from tests import remembered
from tests.benchmarks import imports
from tests.benchmarks import reached as reach

pytest_plugins = ["pytester"]
TEST = """
import pytest
from pathlib import Path
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
    assert (Path("docs") / "tables" / "one.md").read_text()
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
        "docs/tables/one.md": "one",
    }
    for name, text in files.items():
        (pytester.path / name).parent.mkdir(parents=True, exist_ok=True)
        (pytester.path / name).write_text(text)
    monkeypatch.setattr(remembered, "AGAIN", 0.0)
    monkeypatch.delenv("RIDGEPOINT_KERNELS", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in [name for name in sys.modules if name.split(".")[0] in reach.OURS]:
        monkeypatch.delitem(sys.modules, name)
    return pytester


@pytest.fixture
def run(project: pytest.Pytester) -> Callable[..., dict[str, int]]:
    """How many tests ended how."""

    def finished(*arguments: str) -> dict[str, int]:
        for function in (reach.named, remembered.content, reach.below):
            function.cache_clear()
        return project.runpytest_inprocess(*arguments, plugins=[remembered]).parseoutcomes()

    return finished


NEVER = {"skipped": 1, "xfailed": 1, "errors": 1}  # are kept; beside them, a test that passes until its end


def test_what_passed_is_not_run_again_and_is_counted(run):
    assert run() == {"passed": 4, **NEVER}
    assert run() == {"passed": 1, "remembered": 3, **NEVER}
    assert run("--fresh") == {"passed": 4, **NEVER}
    assert run("-k", "test_it") == {"remembered": 1, "deselected": 5}


@pytest.mark.parametrize(
    "file, runs",
    (
        ("kernels/toy.py", 3), ("tests/kernels/test_toy.py", 3), ("snippets/helper.py", 3), ("docs/figure.svg", 3),
        ("docs/tables/one.md", 3), ("pyproject.toml", 4), ("kernels/other.py", 2),
    ),
)  # fmt: skip
def test_a_changed_file_runs_what_depends_on_it(file, runs, run, project):
    run()
    with (project.path / file).open("a") as text:
        text.write("\n" if file.startswith("docs") else "# another\n")
    assert run()["passed"] == runs


def test_a_path_in_the_folder_of_a_test_names_no_file_of_the_checkout(run, project):
    other = 'def test_other(tmp_path):\n    (tmp_path / "docs").mkdir()\n'
    (project.path / "tests" / "kernels" / "test_other.py").write_text(other)
    run()
    (project.path / "docs" / "figure.svg").write_text("<svg></svg>")
    assert run()["passed"] == 3


def test_other_versions_run_all(run, monkeypatch):
    run()
    monkeypatch.setattr(remembered, "surroundings", lambda: ["torch 3"])
    assert run() == {"passed": 4, **NEVER}


def test_a_failure_is_never_kept_and_ends_what_was(run, project, monkeypatch):
    (project.path / "kernels" / "toy.py").write_text("import os\nanswer = int(os.environ['ANSWER'])\n")
    for answer, arguments, expected in (
        ("2", (), "failed"), ("2", (), "failed"), ("1", (), "passed"), ("2", (), "remembered"),
        ("2", ("--fresh",), "failed"), ("1", (), "passed"), ("1", (), "remembered"),
    ):  # fmt: skip
        monkeypatch.setenv("ANSWER", answer)
        for name in ("kernels.toy", "kernels"):
            sys.modules.pop(name, None)
        assert run("-k", "test_it", *arguments) == {expected: 1, "deselected": 5}


@pytest.mark.parametrize("files, passed", ((1.0, {"passed": 4}), (0.0, {"passed": 1, "remembered": 3})))
def test_a_share_of_some_files_runs_again(files, passed, run, monkeypatch):
    run()
    monkeypatch.setattr(remembered, "AGAIN", 1.0)
    monkeypatch.setattr(remembered, "FILES", files)
    assert run() == {**passed, **NEVER}


@pytest.mark.parametrize("seconds, expected", ((0.01, 0.06), (0.3, 0.06), (3.0, 0.006)))
def test_what_is_long_runs_again_less_often(seconds, expected, monkeypatch):
    drawn = iter((expected * 0.99, expected * 1.01))
    monkeypatch.setattr(remembered.random.SystemRandom, "random", lambda _: next(drawn))
    assert remembered.again(seconds, 0.06) and not remembered.again(seconds, 0.06)


def test_one_in_twenty_of_all_tests_runs_again(tmp_path):
    """Of many short tests, two in each file; a little more, as long ones run less often."""
    plugins = [remembered.Remembered(tmp_path, fresh=False) for _ in range(50)]
    drawn = [plugin.again(tmp_path / str(file)) for plugin in plugins for file in range(500) for _ in "12"]
    assert 0.05 < sum(drawn) / len(drawn) < 0.07


def test_a_test_that_reads_what_its_file_does_not_name_is_run_again(run, project):
    """Its key would not change with what it reads; the run says so."""
    (project.path / "docs" / "gvs.land").write_text("<svg/>")
    more = "def test_land():\n    assert open('dnal.svg/scod'[::-1]).read()\n"
    (project.path / "tests" / "kernels" / "test_toy.py").write_text(TEST + more)
    run("-k", "test_land")
    done = project.runpytest_inprocess("-k", "test_land", plugins=[remembered])
    assert done.parseoutcomes() == {"passed": 1, "deselected": 6}
    done.stdout.fnmatch_lines("not remembered: tests/kernels/test_toy.py reads what it does not name: docs/gvs.land")


def test_on_a_gpu_and_of_a_copy_nothing_is_remembered(run, monkeypatch):
    run()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "remembered" not in run()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("RIDGEPOINT_KERNELS", "elsewhere")
    assert "remembered" not in run()


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU nothing is kept")
def test_several_processes_write(project):
    text = Path(remembered.__file__).read_text().replace("AGAIN = 0.06", "AGAIN = 0.0")
    (project.path / "plugin.py").write_text(text.replace("tests.benchmarks.reached", "reader"))
    (project.path / "reader.py").write_text(Path(reach.__file__).read_text().replace(imports.__name__, "imports"))
    (project.path / "imports.py").write_text(Path(imports.__file__).read_text())
    arguments = ("-p", "plugin", "-n", "2", "--dist=worksteal")
    pytest.importorskip("xdist")
    for expected in ({"passed": 4, **NEVER}, {"passed": 1, "remembered": 3, **NEVER}):
        done = project.runpytest_subprocess(*arguments)
        assert done.parseoutcomes() == expected
    done.stdout.fnmatch_lines("3 tests passed before, *--fresh runs them")


def test_the_key_depends_on_the_content_of_each_file(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    files = [tmp_path / "a", tmp_path / "b"]
    before = remembered.digest(tmp_path, files)
    (tmp_path / "b").write_text("c")
    remembered.content.cache_clear()
    assert remembered.digest(tmp_path, files) != before
    assert remembered.digest(tmp_path, files[:1]) != remembered.digest(tmp_path, files)


def test_the_key_of_a_script_is_all_that_it_reaches(tmp_path):
    for name, text in (("one", "from snippets.two import TWO\n"), ("two", "TWO = 2\n"), ("three", "")):
        (tmp_path / "snippets").mkdir(exist_ok=True)
        (tmp_path / "snippets" / f"{name}.py").write_text(text)

    def key(*more: str) -> Path:
        remembered.content.cache_clear()
        reach.named.cache_clear()
        return remembered.printed_by(tmp_path, "snippets.one", *more)

    first = key()
    (tmp_path / "snippets" / "three.py").write_text("THREE = 3\n")
    assert key() == first != key("--quick")
    (tmp_path / "snippets" / "two.py").write_text("TWO = 3\n")
    assert key() != first


def test_the_key_of_a_package_is_all_that_its_start_reaches(tmp_path):
    for name, text in (("__init__", ""), ("__main__", "from snippets.tool import part\n"), ("part", "")):
        (tmp_path / "snippets" / "tool").mkdir(parents=True, exist_ok=True)
        (tmp_path / "snippets" / "tool" / f"{name}.py").write_text(text)
    before = remembered.printed_by(tmp_path, "snippets.tool")
    (tmp_path / "snippets" / "tool" / "part.py").write_text("PART = 1\n")
    remembered.content.cache_clear()
    assert remembered.printed_by(tmp_path, "snippets.tool") != before


def test_a_folder_counts_where_a_test_names_it_and_with_it_no_import_of_its_tests(tmp_path):
    """What finds the cases works on tiny folders in most tests. Whoever looks through a folder imports no tests."""
    texts = {
        "tests/benchmarks/runner.py": "CASES = 'tests/benchmarks'\nALL = 'tests/'\n",
        "tests/benchmarks/case.py": "from snippets import measured\n",
        "tests/benchmarks/test_case.py": "from snippets import tested\n",
        "tests/pages/test_all.py": "from tests.benchmarks import runner\nREAD = 'tests/benchmarks'\n",
        **dict.fromkeys(("snippets/measured.py", "snippets/tested.py"), ""),
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def found(name: str) -> set[str]:
        return {path.relative_to(tmp_path).as_posix() for path in reach.reached(tmp_path, [tmp_path / name])}

    assert found("tests/benchmarks/runner.py") == {"tests/benchmarks/runner.py"}
    assert texts.keys() - found("tests/pages/test_all.py") == {"snippets/tested.py"}


def test_who_imports_what_is_compiled_already_has_read_it(tmp_path):
    plugin = remembered.Remembered(tmp_path, fresh=False)
    plugin.watch(str(tmp_path / "kernels/__pycache__/toy.cpython-311.pyc"), "r", os.O_RDONLY)
    assert plugin.opened == {f"{tmp_path}/kernels/toy.py"}


def test_however_many_runs_a_process_has_one_hook_watches_and_only_for_those_that_go_on(run, monkeypatch):
    before = [*remembered.watching()]
    monkeypatch.setattr(sys, "addaudithook", lambda hook: pytest.fail("another hook"))
    run()
    assert remembered.watching() == before


def test_a_script_runs_once_and_is_remembered_if_it_ends_well(tmp_path, monkeypatch):
    monkeypatch.setattr(remembered, "AGAIN", 0.0)
    statuses: list[int] = []

    def ask(key: str, run: int, status: int = 0, fresh: bool = False) -> bool:
        """Whether the script ran, asked for in the run of this number."""
        (shared := tmp_path / str(run)).mkdir(exist_ok=True)
        before = len(statuses)
        done = remembered.once(
            shared, fresh, tmp_path / key, lambda: statuses.append(status) or CompletedProcess([], status, "out", "")
        )
        assert done.stdout == "out"
        return len(statuses) > before

    assert ask("good-1", 1) and not ask("good-1", 1), "twice in a run"
    assert not ask("good-1", 2) and ask("good-1", 3, fresh=True)
    assert ask("bad-1", 1, status=1) and not ask("bad-1", 1, status=1) and ask("bad-1", 2, status=1)
    monkeypatch.setattr(remembered, "AGAIN", 1.0)
    assert ask("good-1", 4)


def test_the_oldest_results_are_forgotten(tmp_path):
    for number in range(9):
        remembered.write(tmp_path / f"name-{number}", "text")
        os.utime(tmp_path / f"name-{number}", (number, number))
    remembered.write(tmp_path / "other-0", "text")
    assert {path.name for path in tmp_path.iterdir()} == {"name-5", "name-6", "name-7", "name-8", "other-0"}


def test_a_readers_own_file_is_judged_anew(run, project):
    """What is remembered of tests/exercises is about the solutions."""
    (project.path / "conftest.py").write_text("def pytest_addoption(parser):\n    parser.addoption('--mine')\n")
    run()
    assert "remembered" in run() and "remembered" not in run("--mine", "a.py")

"""The tool that plants mutants, on a tree of two files: it tells one that is killed from one that is not."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mutants.__main__ import Outcome, judged
from tests.mutants.mutant import ROOT

ENTRY = """
[{name}]
kind = "sign"
fault = "one is minus one"
file = "code.py"
old = "{old}"
new = "{new}"
test = "tests/test_code.py"
{more}
"""
TEST = """
import os, pathlib, time
import code_of_ours

def test_one():
    if "MARK" in os.environ and code_of_ours.ONE != 1:
        pathlib.Path(os.environ["MARK"]).write_text(str(os.getpid()))
        time.sleep(600)
    assert code_of_ours.ONE == 1, "one is one"
"""


@pytest.fixture
def tree(tmp_path: Path) -> Callable[..., Path]:
    """Writes the tree, with these entries."""

    def write(*entries: str, test: str = TEST) -> Path:
        root = tmp_path / "tree"
        files = {
            "code_of_ours.py": "ONE = 1\nTWO = 2\n",
            "tests/test_code.py": test,
            "tests/mutants/some.toml": "".join(entries),
        }
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        return root

    return write


def entry(name: str, old: str, new: str, more: str = "") -> str:
    return ENTRY.format(name=name, old=old, new=new, more=more).replace("code.py", "code_of_ours.py", 1)


def command(root: Path, *arguments: str) -> list[str]:
    """The tool on a tree, in a process of its own: in this one a browser's test may have left an event loop running."""
    imports = "import sys; from pathlib import Path; from tests.mutants.__main__ import main"
    code = f"{imports}; sys.exit(main(sys.argv[2:], Path(sys.argv[1])))"
    return [sys.executable, "-c", code, str(root), *arguments]


def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What the tool says where no GPU is seen."""
    unseen = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command(root, *arguments), cwd=ROOT, env=unseen, capture_output=True, text=True, check=False)


def contents(root: Path) -> dict[str, str]:
    return {str(path): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_each_mutant_gets_its_verdict(tree):
    root = tree(
        entry("minus", "ONE = 1", "ONE = -1"),
        entry("two", "TWO = 2", "TWO = 3"),
        entry("gone", "THREE = 3", "THREE = 4"),
        entry("no-python", "ONE = 1", "ONE ="),
        entry("no-verdict", "ONE = 1", "import os; os._exit(7)"),
        entry("on-a-gpu", "ONE = 1", "ONE = -1", 'needs = "gpu"'),
    )
    before = contents(root)
    done = run(root)
    assert done.returncode == 1, done.stderr
    assert contents(root) == before
    progress, count, table = done.stdout.partition("1 of 6 killed")
    assert count
    assert re.search(r"\d/4\] killed   minus .* test_code.py::test_one - AssertionError: one is one", progress)
    assert re.search(r"^survived two +the test passes$", table, re.MULTILINE)
    assert re.search(
        r"^error    gone +stale entry: expected .* once in code_of_ours.py, found it 0 times$", table, re.MULTILINE
    )
    assert re.search(r"^error    no-python +pytest ended with status 2: ", table, re.MULTILINE)
    assert re.search(r"^error    no-verdict +pytest ended with status 7", table, re.MULTILINE)
    assert re.search(r"^not run  on-a-gpu +needs a GPU$", table, re.MULTILINE)
    assert "minus" not in table


def test_a_mutant_without_end_is_an_error():
    assert judged(Outcome(-1, "no end after 900 s"))[0] == "error"


def test_tests_that_fail_anyway_kill_nothing(tree):
    root = tree(entry("minus", "ONE = 1", "ONE = -1"), test="def test_red():\n    assert False\n")
    done = run(root)
    assert done.returncode == 1, done.stderr
    assert "tests/test_code.py fails without a mutant" in done.stdout and "minus" not in done.stdout


def test_some_are_picked_by_name_or_area(tree):
    root = tree(entry("minus", "ONE = 1", "ONE = -1"), entry("two", "TWO = 2", "TWO = 3"))
    one = run(root, "minus")
    assert one.returncode == 0 and "1 of 1 killed" in one.stdout, one.stderr
    listed = run(root, "some", "--list")
    assert listed.returncode == 0, listed.stderr
    minus, two = listed.stdout.splitlines()
    assert minus.split()[:2] == ["some", "minus"] and two.split()[:2] == ["some", "two"]
    unknown = run(root, "plus")
    assert unknown.returncode == 2 and "no mutant and no area of this name: plus" in unknown.stderr


def test_interrupted_it_leaves_the_tree_alone_and_nothing_behind(tree, tmp_path):
    root = tree(entry("minus", "ONE = 1", "ONE = -1"))
    before, mark, copies = contents(root), tmp_path / "mark", tmp_path / "copies"
    copies.mkdir()
    environment = os.environ | {"MARK": str(mark), "TMPDIR": str(copies)}
    tool = subprocess.Popen(command(root), cwd=ROOT, env=environment)
    while not (mark.exists() and mark.read_text()):
        assert tool.poll() is None
        time.sleep(0.1)
    tool.send_signal(signal.SIGTERM)
    assert tool.wait() == 128 + signal.SIGTERM
    assert contents(root) == before
    assert not list(copies.iterdir())
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)

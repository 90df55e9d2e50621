"""The file that readers begin with fails every test of the exercises, and none because the test itself is broken."""

import os
import re
import subprocess
import sys

from tests.benchmarks.source import ROOT

MINE = "snippets/kernels/first_kernel_exercises.py"


def test_the_unsolved_file_fails_every_test(tmp_path):
    mine = tmp_path / "my_kernels.py"
    mine.write_text((ROOT / MINE).read_text())
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/exercises", "--mine", mine, "--tb=line"],
        cwd=ROOT, env=own, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"= \d+ failed(, \d+ skipped)? in ", done.stdout), done.stdout
    reasons = re.findall(r"^\S+test_first_kernel\.py:\d+: (.*)$", done.stdout, flags=re.MULTILINE)
    assert reasons and all("NaN, or were never written" in reason for reason in reasons), reasons


def test_a_file_that_is_not_there_is_named():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/exercises", "--mine", "nowhere.py"],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 2 and "--mine: no such file: nowhere.py" in done.stdout + done.stderr

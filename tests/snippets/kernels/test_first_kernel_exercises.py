"""The file that readers begin with fails every test of the exercises, and none because the test itself is broken."""

import re

from tests.benchmarks.source import ROOT

MINE = "snippets/kernels/first_kernel_exercises.py"


def test_the_unsolved_file_fails_every_test(tmp_path, forked):
    mine = tmp_path / "my_kernels.py"
    mine.write_text((ROOT / MINE).read_text())
    done = forked(["-m", "pytest", "tests/exercises", "--mine", str(mine), "--tb=line"])
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"= \d+ failed(, \d+ skipped)?(, \d+ warnings?)? in ", done.stdout), done.stdout
    reasons = re.findall(r"^\S+test_first_kernel\.py:\d+: (.*)$", done.stdout, flags=re.MULTILINE)
    assert reasons and all("NaN, or were never written" in reason for reason in reasons), reasons


def test_a_file_that_is_not_there_is_named(forked):
    done = forked(["-m", "pytest", "tests/exercises", "--mine", "nowhere.py"])
    assert done.returncode == 2 and "--mine: no such file: nowhere.py" in done.stdout + done.stderr

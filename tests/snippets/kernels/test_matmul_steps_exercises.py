"""The file that readers begin with fails every test of the exercises, and none because the test itself is broken."""

import re

from tests.benchmarks.source import ROOT
from tests.snippets.kernels.test_first_kernel import INTERPRETED


def test_the_unsolved_file_fails_every_test(tmp_path, forked):
    mine = tmp_path / "my_matmul.py"
    mine.write_text((ROOT / "snippets/kernels/matmul_steps_exercises.py").read_text())
    command = ["-m", "pytest", "tests/exercises/test_matmul_steps.py", "--mine", str(mine), "--tb=line"]
    done = forked(command)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"= \d+ failed(, \d+ skipped)?(, \d+ warnings?)? in ", done.stdout), done.stdout
    reasons = re.findall(r"^\S+test_matmul_steps\.py:\d+: (.*)$", done.stdout, flags=re.MULTILINE)
    assert len(reasons) == 14 or not INTERPRETED
    assert all("NaN, or were never written" in reason for reason in reasons), reasons

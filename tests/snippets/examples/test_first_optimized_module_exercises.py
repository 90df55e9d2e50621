"""The file that readers begin with fails each checkpoint, and none because the checkpoint itself is broken."""

import os
import re
import subprocess
import sys

from tests.benchmarks.source import ROOT
from tests.exercises import test_first_optimized_module as checkpoints

MINE = "snippets/examples/first_optimized_module_exercises.py"
REASONS = {
    "one": "there is no trace",
    "two": r"expected at most \d+ operations, got \d+",
    "three": "nothing was compiled",
    "four": r"lets pass what is wrong: \['5% too large', .*, 'result in float64'\]",
    "five": "there is no package",
}


def test_the_unsolved_file_fails_each_checkpoint_for_its_reason(tmp_path):
    mine = tmp_path / "my_module.py"
    mine.write_text((ROOT / MINE).read_text())
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/exercises/test_first_optimized_module.py", "--mine", mine, "--tb=line"],
        cwd=ROOT, env=own, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"= 5 failed(, \d+ warnings)? in ", done.stdout), done.stdout
    reasons = re.findall(r"^\S+test_first_optimized_module\.py:\d+: AssertionError: (.*)$", done.stdout, re.MULTILINE)
    assert len(reasons) == 5
    for reason, expected in zip(reasons, REASONS.values(), strict=True):
        assert re.fullmatch(expected, reason), reason


def test_a_file_for_other_exercises_is_not_judged():
    command = [
        sys.executable, "-m", "pytest", "tests/exercises/test_first_optimized_module.py",
        "--mine", "snippets/kernels/first_kernel_exercises.py",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and re.search("= 5 skipped in ", done.stdout), done.stdout


def test_k_chooses_one_checkpoint():
    path = "tests/exercises/test_first_optimized_module.py"
    names = [f"{path}::{name}" for name in vars(checkpoints) if name.startswith("test_")]
    for word in REASONS:  # as pytest looks for it
        assert [name.partition("::test_")[2].partition("_")[0] for name in names if word in name] == [word]

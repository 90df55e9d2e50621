"""The file that readers begin with fails each checkpoint, and none because the checkpoint itself is broken."""

import re

from tests.benchmarks.source import ROOT
from tests.exercises import test_first_optimized_module as checkpoints

MINE = "snippets/examples/first_optimized_module_exercises.py"
TESTS = "tests/exercises/test_first_optimized_module.py"
REASONS = {
    "one": "there is no trace",
    "two": r"expected at most \d+ operations, got \d+",
    "three": "nothing was compiled",
    "four": r"lets pass what is wrong: \['5% too large', .*, 'result in float64'\]",
    "five": "there is no package",
}


def test_the_unsolved_file_fails_each_checkpoint_for_its_reason(tmp_path, forked):
    mine = tmp_path / "my_module.py"
    mine.write_text((ROOT / MINE).read_text())
    done = forked(["-m", "pytest", TESTS, "--mine", str(mine), "--tb=line"])
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"= 5 failed(, \d+ warnings?)? in ", done.stdout), done.stdout
    reasons = re.findall(r"^\S+test_first_optimized_module\.py:\d+: AssertionError: (.*)$", done.stdout, re.MULTILINE)
    assert len(reasons) == 5
    for reason, expected in zip(reasons, REASONS.values(), strict=True):
        assert re.fullmatch(expected, reason), reason


def test_a_file_for_other_exercises_is_not_judged(forked):
    done = forked(["-m", "pytest", TESTS, "--mine", "snippets/kernels/first_kernel_exercises.py"])
    assert done.returncode == 0 and re.search(r"= 5 skipped(, \d+ warnings?)? in ", done.stdout), done.stdout


def test_k_chooses_one_checkpoint():
    names = [f"{TESTS}::{name}" for name in vars(checkpoints) if name.startswith("test_")]
    for word in REASONS:  # as pytest looks for it
        assert [name.partition("::test_")[2].partition("_")[0] for name in names if word in name] == [word]

"""Every kernel file, copied to where nothing else is."""

import re

from tests.kernels import alone


def test_each_file_stands_alone_and_reloads_and_refuses_a_cpu(tmp_path):
    answers = alone.called_on_a_cpu(tmp_path)
    assert {answer.split(".")[0] for answer in answers} == set(alone.KERNELS)
    end = re.compile(
        "ValueError: .*: expected (a GPU tensor, got one on the CPU .which needs TRITON_INTERPRET=1.|"
        "a tensor on an NVIDIA GPU, got one on cpu)"
    )
    assert {name: answer for name, answer in answers.items() if not end.fullmatch(answer)} == {}


def test_copied_each_file_passes_its_tests(tmp_path):
    done = alone.tested_as_copies(tmp_path)
    assert done.returncode == 0, done.stdout
    assert set(re.findall(r"^PASSED tests/kernels/test_(\w+)\.py", done.stdout, re.MULTILINE)) == set(alone.KERNELS)

"""The machine code for an H100 has what the page says of each step, and of no other."""

import re

import pytest

from snippets.kernels import matmul_steps_code
from tests.benchmarks.captures import sections
from tests.kernels.cuda import compiles

READ = ("tests/forked.py",)  # the script runs in it
VARIES = {"code": r"(?m)\b\d+(?= +\d+ +\d+$)"}  # registers: another ptxas


@pytest.fixture
def code(script) -> dict[str, dict[str, int]]:
    """By step, the numbers of the printed table."""
    done = script("snippets.kernels.matmul_steps_code")
    assert done.returncode == 0, done.stderr
    head, *rows = sections(done.stdout)["code"].splitlines()
    names = [*matmul_steps_code.NAMES, "registers", "shared", "spilled"]
    assert re.sub("KiB ", "", head).split() == names
    found = {}
    for row in rows:
        step, *numbers = re.split(r"\s{2,}", row)
        found[step] = dict(zip(names, map(int, numbers), strict=True))
    return found


@compiles
def test_each_step_changes_the_code_as_the_page_says(code):
    assert all(row["spilled"] == 0 and row["registers"] <= 255 for row in code.values())
    assert all(row["shared"] <= 227 for row in code.values())  # KiB that a program may have on an H100
    naive, tiles, dots, piped, grouped, descriptors, persistent, in_parts, specialised = list(code.values())[:9]
    loads = lambda row: row["LDG"] + row["LDGSTS"] + row["UTMALDG"]  # noqa: E731
    assert tiles["FFMA"] / loads(tiles) >= 8 * naive["FFMA"] / loads(naive) > 0
    for row in (dots, piped, grouped, descriptors, persistent, in_parts, specialised):
        assert row["HGMMA"] > 0 == row["FFMA"]
    assert dots["LDG"] > 0 == dots["LDGSTS"] and dots["shared"] == 48
    for row in (piped, grouped):
        assert row["LDGSTS"] == 4 * dots["LDG"] and row["LDG"] == 0 and row["shared"] == 4 * dots["shared"]
    for row in (descriptors, persistent, in_parts, specialised):
        assert row["UTMALDG"] > 0 < row["UTMASTG"] and not row["LDG"] + row["LDGSTS"] + row["STG"]
    assert descriptors["registers"] < piped["registers"] - 30
    assert [row["UTMALDG"] for row in (persistent, in_parts)] == [2 * 3, 2 * 4]  # a and b, in each stage
    assert persistent["shared"] == 3 * 48 + 64 == in_parts["shared"] == 4 * 48 + 64 // 4
    assert in_parts["UTMASTG"] == 4 * persistent["UTMASTG"]
    assert specialised["HGMMA"] == 2 * descriptors["HGMMA"]  # two groups of warps, each with code of its own


@compiles
def test_the_functions_in_cuda_do_the_same(code):
    naive, shared, wgmma = (code[f"CUDA {name}"] for name in ("naive", "shared_memory", "tensor_cores"))
    assert 2 * naive["FFMA"] == naive["LDG"] and naive["HGMMA"] == 0
    assert shared["FFMA"] == 512 * shared["LDG"] and shared["HGMMA"] == 0
    assert wgmma["HGMMA"] == 4 and wgmma["LDGSTS"] == 24 and not wgmma["FFMA"] + wgmma["LDG"]


def test_traffic_by_hand():
    assert round(matmul_steps_code.traffic(128, 256), 1) == 12.9
    assert matmul_steps_code.wave(1, 32) * 1e9 == (128 + 32 * 256) * 8192 * 2  # one row of tiles: all of b
    assert matmul_steps_code.wave(16, 16) * 1e9 == (16 * 128 + 256) * 8192 * 2


@pytest.mark.parametrize(("name", "numbers"), (("traffic", ["137.4", "17.2", "12.9"]), ("wave", ["145", "71"])))
def test_what_the_script_prints_of_the_traffic(name, numbers, script):
    text = sections(script("snippets.kernels.matmul_steps_code").stdout)[name]
    assert re.findall(r": ([\d.]+) [GM]B", text) == numbers

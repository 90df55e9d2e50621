"""The tool for compiled code: facts and lines of kernels whose code is known, and a clear message for what is wrong.

Triton compiles nothing while it interprets, as in tests on a CPU: everything here runs in a process of its own.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
from snippets.validation.compiled_code import bits

ROOT = Path(__file__).parents[3]
KERNELS = """
import triton
import triton.language as tl


@triton.jit
def scale(x, y, n, eps, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x + at, mask=inside)
    tl.store(y + at, value * 2 + eps, mask=inside)


@triton.jit
def total(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y, tl.sum(tl.load(x + at)))


@triton.jit
def product(a, b, c, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)))


@triton.jit
def crowded(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    kept = ()
    for i in tl.static_range(16):
        kept = kept + (tl.load(x + i * BLOCK + at),)
    for i in tl.static_range(16):
        tl.store(y + i * BLOCK + at, kept[i] * tl.sum(kept[15 - i]))


def not_a_kernel():
    pass
"""
LINES = {text.strip(): number for number, text in enumerate(KERNELS.splitlines(), 1)}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("kernels") / "my_kernels.py"
    file.write_text(KERNELS)
    return file


def run(kernel: str, signature: str, *more: str, interpret: str = "0") -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "snippets.validation.compiled_code", kernel, "--signature", signature, *more]
    environment = {**os.environ, "TRITON_INTERPRET": interpret}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800)


def facts(folder: Path, kernel: str, target: str) -> dict:
    return json.loads((folder / f"{kernel}.{target}.json").read_text())


def compiled(kernels: Path, folder: Path, name: str, signature: str, *more: str) -> Path:
    done = run(f"{kernels}:{name}", signature, "--out", str(folder), *more)
    assert done.returncode == 0, done.stderr
    (folder / "stdout.txt").write_text(done.stdout)
    return folder


TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")


@pytest.fixture(scope="module")
def scaled(kernels, tmp_path_factory) -> Path:
    """What is written of a kernel with wide accesses."""
    signature = "*bf16:16, *bf16:16, i32:16, fp32, 2048"
    return compiled(kernels, tmp_path_factory.mktemp("scaled"), "scale", signature, "--target", *TARGETS)


def test_wide_accesses_on_every_target(scaled):
    for target in TARGETS:
        found = facts(scaled, "scale", target)
        assert set(found["loads"]) == set(found["stores"]) == {"128"}, found
        assert found["spilled"] == found["fp64"] == found["tensor_core"] == 0 and found["warps"] == 4
        assert 0 < found["registers"] <= 64 and found["instructions"] > 0 and found["size"] >= 4 * found["instructions"]


@pytest.mark.parametrize(
    ("opcode", "width"),
    (
        ("LDG.E", 32), ("LDG.E.U16", 16), ("STG.E.S8.STRONG.GPU", 8), ("LDG.E.64.CONSTANT", 64),
        ("LDGSTS.E.BYPASS.128", 128), ("global_load_ushort", 16), ("buffer_store_dword", 32), ("global_load_b64", 64),
        ("buffer_load_dwordx4", 128),
    ),
)  # fmt: skip
def test_the_width_of_an_access_is_in_its_name(opcode, width):
    assert bits(opcode) == width


def test_narrow_accesses_and_their_lines(kernels):
    """Without a hint at the address, bf16 is read two bytes at a time; the line is said."""
    done = run(f"{kernels}:scale", "*bf16, *bf16:16, i32:16, fp32, 1024")
    line = LINES["value = tl.load(x + at, mask=inside)"]
    assert re.search(rf"accesses of 16 bits: \d+\n +\d+ from line {line}: value = tl.load", done.stdout), done.stdout
    assert re.search(r"loads +\d+ of 16 bits\n", done.stdout), done.stdout
    assert "fp64:" not in done.stdout


def test_fp64_and_its_line(kernels):
    done = run(f"{kernels}:scale", "*bf16:16, *bf16:16, i32:16, fp64, 1024")
    line = LINES["tl.store(y + at, value * 2 + eps, mask=inside)"]
    assert re.search(rf"fp64: \d+\n +\d+ from line {line}:", done.stdout), done.stdout


def test_shuffles_barriers_and_shared_memory(kernels, tmp_path):
    out = compiled(kernels, tmp_path, "total", "*fp32:16, *fp32:16, 1024", "--target", "sm_90", "gfx942")
    for target in ("sm_90", "gfx942"):
        found = facts(out, "total", target)
        assert found["shuffles"] and found["shared"] > 0, found
    assert facts(out, "total", "sm_90")["barriers"]


def test_tensor_cores(kernels, tmp_path):
    out = compiled(kernels, tmp_path, "product", "*bf16:16, *bf16:16, *fp32:16, 64", "--target", *TARGETS)
    for target in TARGETS:
        assert facts(out, "product", target)["tensor_core"], target


def test_spills_and_more_warps_without_them(kernels, tmp_path):
    signature = "*fp32:16, *fp32:16, i32:16, 8192"
    out = compiled(kernels, tmp_path, "crowded", signature, "--num-warps", "8")
    assert facts(out, "crowded", "sm_90")["spilled"] > 0
    assert "spilled registers: " in (out / "stdout.txt").read_text()
    fits = "*fp32:16, *fp32:16, i32:16, 512"
    assert facts(compiled(kernels, tmp_path, "crowded", fits, "--num-warps", "8"), "crowded", "sm_90")["spilled"] == 0


def test_every_form_is_written_and_instructions_know_their_line(scaled):
    load, store = (LINES[text] for text in ("value = tl.load(x + at, mask=inside)", "inside = at < n"))
    for form, wanted in {
        "sm_90.ttir": r"tt\.load", "sm_90.ttgir": r"tt\.load", "sm_90.ptx": r"ld\.global", "sm_90.sass": r"LDG\.E\.128",
        "gfx942.ttir": r"tt\.load", "gfx942.ttgir": r"(tt|amdg?\w*)\.\w*load",
        "gfx942.amdgcn": r"(global|buffer)_load_dwordx4",
    }.items():  # fmt: skip
        text = (scaled / f"scale.{form}").read_text()
        assert re.search(rf"{wanted}.*// line {load}$", text, re.MULTILINE), form
        assert f"// line {store}" in text, form
    text = (scaled / "scale.sm_90.sass").read_text()
    code = [line for line in text.splitlines() if re.match(r"\s+/\*[0-9a-f]{4}\*/", line)]
    code = [line for line in code if not re.search(r"NOP|BRA|EXIT", line)]
    assert sum("// line" in line for line in code) >= 0.9 * len(code)


@pytest.mark.parametrize(
    "kernel, signature, more, message",
    (
        ("nowhere.py:scale", "1", (), "kernel: expected FILE.py:NAME of an existing file, got 'nowhere.py:scale'"),
        ("{}", "1", (), "kernel: expected FILE.py:NAME of an existing file"),
        ("{}:nothing", "1", (), "has no @triton.jit function 'nothing'; it has crowded, product, scale, total"),
        ("{}:not_a_kernel", "1", (), "has no @triton.jit function 'not_a_kernel'"),
        ("{}:scale", "*bf16, *bf16", (), r"signature: expected 5 entries \(x, y, n, eps, BLOCK\), got 2"),
        ("{}:scale", "*bf16, *bf16, int, fp32, 1024", (), "n: expected a type such as .*, got 'int'"),
        ("{}:scale", "*bf16, *bf16, 7, fp32, 1024", (), "n: expected a type such as .*, or None, got '7'"),
        ("{}:scale", "*bf16:8, *bf16, i32, fp32, 1024", (), "x: expected :16 or :1 after the type, got '.bf16:8'"),
        ("{}:scale", "*bf16, *bf16, i32, fp32, i32", (), "BLOCK: expected the value of a constexpr, got 'i32'"),
        ("{}:scale", "*bf16, *bf16, i32, fp32, 1000", (), "does not compile for sm_90:(.|\n)*power of 2"),
        ("{}:scale", "*bf16, *bf16, i32, fp32, 1024", ("--target", "sm_91"), "target: expected one of .*, got 'sm_91'"),
    ),
)
def test_what_is_wrong_is_said_in_one_message(kernels, kernel, signature, more, message):
    done = run(kernel.format(kernels), signature, *more)
    assert done.returncode == 2 and re.search(message, done.stderr) and "Traceback" not in done.stderr, done.stderr


def test_a_file_that_does_not_run(tmp_path):
    (tmp_path / "broken.py").write_text("import triton\n1 / 0\n")
    done = run(f"{tmp_path / 'broken.py'}:kernel", "1")
    assert done.returncode == 2 and "does not run: ZeroDivisionError: division by zero" in done.stderr


def test_it_compiles_where_tests_interpret(kernels):
    done = run(f"{kernels}:scale", "*bf16, *bf16, i32, fp32, 1024", interpret="1")
    assert done.returncode == 0 and "registers" in done.stdout, done.stderr

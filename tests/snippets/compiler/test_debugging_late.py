"""An error of a GPU comes late, and a variable brings it to its line: each bug is run, and read in its own words."""

import re
import signal

import pytest
import torch

from snippets.compiler.debugging_late import BUGS, LOOKUPS, ON_A_GPU, asserted, functions, line, raised, sanitized
from tests.snippets.compiler.test_debugging_symptoms import known

MODULE = "snippets.compiler.debugging_late"
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="the errors of a GPU")
ILLEGAL = "CUDA error: an illegal memory access was encountered"
ASSERT = "AcceleratorError: CUDA error: device-side assert triggered"
EAGER = {"embedding": "F.embedding", "gather": "rows.gather", "cross_entropy": "F.cross_entropy"}


def sections(script, device: str) -> dict[str, str]:
    done = script(MODULE, device)
    assert done.returncode == 0, done.stderr[-2000:]
    parts = re.split(r"^==== (.+)\n", done.stdout, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def told(section: str) -> dict[str, tuple[list[str], str]]:
    """What was raised by each bug of a section, and where."""
    found = re.findall(r"^(\S.*)\n((?:  .*\n)*?)  at  (.*)", section, re.MULTILINE)
    return {name: ([words.strip() for words in errors.splitlines()], where) for name, errors, where in found}


# ---- on a CPU -------------------------------------------------------------------------------------------------------


@known
def test_on_a_cpu_each_lookup_fails_at_once_in_clear_words(script):
    rows, threads = sections(script, "cpu")["at once"].split("4096 rows, two threads\n")
    found = dict(re.split(r" {2,}", row, maxsplit=1) for row in rows.splitlines())
    assert found["embedding"] == "IndexError: index out of range in self"
    assert found["gather"] == "RuntimeError: index 8 is out of bounds for dimension 1 with size 8"
    assert found["cross_entropy"] == "IndexError: Target 8 is out of bounds."
    for function in LOOKUPS:
        assert re.fullmatch(
            r"RuntimeError: index out of bounds: 0 <= tmp\d+ < 8L", found[f"{function.__name__}, compiled"]
        )
    first, what, status = threads.splitlines()
    assert first == "terminate called after throwing an instance of 'std::runtime_error'"
    assert re.fullmatch(r"  what\(\):  index out of bounds: 0 <= tmp\d+ < 8L", what)
    assert status == f"status {-signal.SIGABRT}"


def test_on_a_cpu_it_says_what_needs_a_gpu(script):
    assert sections(script, "cpu")["needs a GPU"].strip().split(", ") == list(ON_A_GPU)
    assert set(BUGS) - set(ON_A_GPU) == {*EAGER, *(f"{name}, compiled" for name in EAGER), "many"}


TEXT = """\
Traceback (most recent call last):
  File "/tmp/snippets/compiler/debugging_late.py", line 70, in lookup
    result = call(rows, index)
             ^^^^^^^^^^^^^^^^^
  File "/tmp/torchinductor_me/ab/cab.py", line 81, in call
    triton_poi_fused_embedding_0.run(arg0_1, buf0)
  File "/lib/python/triton/runtime.py", line 3, in run
    launch()
torch.AcceleratorError: CUDA error: device-side assert triggered
Search for `cudaErrorAssert' somewhere.
/tmp/torchinductor_me/ab/cab.py:22: unknown: block: [0,0,0], thread: [3,0,0] Assertion `index: 0 <= tmp4 < 8` failed.
"""
REPORT = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at stray+0x170 in debugging_late.py:40
=========     by thread (0,0,0) in block (0,0,0)
=========     Access at 0x7f1 is out of bounds
=========     and is 481 bytes after the nearest allocation at 0x7f0 of size 32 bytes
no error, and no other tensor has changed
========= ERROR SUMMARY: 1 error
"""


def test_what_a_process_printed_is_read():
    assert raised(TEXT) == ["AcceleratorError: CUDA error: device-side assert triggered"]
    assert line(TEXT) == "triton_poi_fused_embedding_0.run(arg0_1, buf0)"
    assert asserted(TEXT) == "cab.py:22: unknown: Assertion `index: 0 <= tmp4 < 8` failed."
    assert (raised(""), line(""), asserted("")) == ([], "no line", "no assertion")
    assert sanitized(REPORT)[:2] == ["Invalid __global__ write of size 4 bytes", "at stray"]
    assert sanitized("========= ERROR SUMMARY: 0 errors\n") == ["ERROR SUMMARY: 0 errors"]
    stack = "frame #3: void at::native::(anonymous namespace)::look<int>(int) + 0x1 (0x2 in lib.so)\nframe #4: main\n"
    assert functions(stack) == ["at::native::look"]


# ---- on a GPU -------------------------------------------------------------------------------------------------------


@GPU
def test_an_illegal_access_is_raised_at_a_later_line_unless_each_launch_is_waited_for(script):
    found = told(sections(script, "cuda")["late"])
    assert found["illegal"] == ([f"AcceleratorError: {ILLEGAL}"], "print(total.item())")
    (words,), where = found["illegal, CUDA_LAUNCH_BLOCKING=1"]
    assert "an illegal memory access was encountered" in words and where == "stray[(1,)](x, at)"


@GPU
@pytest.mark.parametrize("name", EAGER)
def test_an_index_that_is_too_large_is_an_assertion_on_the_gpu_and_comes_late(name, script):
    section = sections(script, "cuda")["asserts"]
    found = told(section)
    for bug in (name, f"{name}, compiled"):
        assert found[bug] == ([ASSERT], "print(result.sum().item())")
        errors, where = found[f"{bug}, CUDA_LAUNCH_BLOCKING=1"]
        assert len(errors) == 1 and "device-side assert triggered" in errors[0]
        assert (EAGER[name] in where) if bug == name else re.match(r"triton_\w+\.run\(", where)
    wrote = re.findall(r"the GPU wrote  (.*)", section)
    assert len(wrote) == 6 and all("Assertion `" in words for words in wrote)
    assert all("index out of bounds: 0 <= tmp" in words for words in wrote[1::2])


@GPU
def test_the_question_is_in_the_generated_code_and_without_it_there_is_no_error(script):
    found = sections(script, "cuda")
    assert re.search(r"tl\.device_assert\(.*\"index out of bounds: 0 <= tmp\d+ < 8\"\)", found["generated"])
    assert "Error" not in found["unasked"] and "status 0" in found["unasked"]


@GPU
def test_after_an_error_the_process_can_use_the_gpu_no_more_and_a_new_one_can(script):
    found = {row[:17].strip(): row[17:] for row in sections(script, "cuda")["dead"].splitlines()}
    for what in ("the kernel", "another tensor", "an older tensor", "waiting"):
        assert found[what] == f"AcceleratorError: {ILLEGAL}", what
    assert found["is there a GPU?"] == "works: True" and found["on the CPU"] == "works: 8.0"
    assert found["a new process"] == "works"


@GPU
def test_too_little_memory_ends_nothing(script):
    section = sections(script, "cuda")["memory"]
    (words,), where = told(section)["out_of_memory"]
    assert words.startswith("OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB")
    assert "empty_strided_cuda" in where and re.search(r"afterwards +works: 32768.0", section)


@GPU
def test_a_write_next_door_is_no_error_and_compute_sanitizer_sees_it_without_the_allocator(script):
    section = sections(script, "cuda")["too far"]
    plain, *rest = re.split(r"^(?=\S)", section, flags=re.MULTILINE)[1:]
    assert "no error, another tensor has changed" in plain
    if "no compute-sanitizer" in section or "Error:" in section:
        pytest.skip("compute-sanitizer does not run here")
    under = {part.splitlines()[0]: part for part in rest}
    assert "Invalid" not in under["compute-sanitizer"]
    report = under["PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer"]
    assert "Invalid __global__ write of size 4 bytes" in report and "at stray" in report


@GPU
def test_in_a_cuda_graph_the_error_is_one_of_the_replay(script):
    section = sections(script, "cuda")["graph"]
    found = told(section)
    assert found["replayed"] == ([ASSERT], "print(later.sum().item())")
    assert found["replayed, CUDA_LAUNCH_BLOCKING=1"][1] in ("graph.replay()", "print(later.sum().item())")
    assert "operation not permitted when stream is capturing" in found["waits_while_recording"][0][0]
    assert "Assertion `" in section


@GPU
def test_a_stack_names_the_operation_in_cpp(script):
    first, *frames = sections(script, "cuda")["stack"].splitlines()
    assert "c10_cuda_check_implementation" in first and any("at::native" in frame for frame in frames)

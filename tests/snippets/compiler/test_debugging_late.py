"""An error of a GPU comes late, and a variable brings it to its line: each bug is run, and read in its own words."""

import re
import signal

import pytest
import torch
from triton.runtime.errors import OutOfResources

from snippets.compiler.debugging_late import BUGS, LOOKUPS, ON_A_GPU
from tests.benchmarks import captures
from tests.benchmarks.source import ROOT
from tests.snippets.compiler.cpp_library import skip_where_it_is_twice
from tests.snippets.compiler.test_debugging_late_read import told
from tests.snippets.compiler.test_debugging_symptoms import known

MODULE = "snippets.compiler.debugging_late"
ILLEGAL = "CUDA error: an illegal memory access was encountered"
ASSERT = "AcceleratorError: CUDA error: device-side assert triggered"
EAGER = {"embedding": "F.embedding", "gather": "rows.gather", "cross_entropy": "F.cross_entropy"}


def sections(script, device: str) -> dict[str, str]:
    done = script(MODULE, device)
    if done.returncode == -signal.SIGSEGV:
        skip_where_it_is_twice(script)
    assert done.returncode == 0, done.stderr[-2000:]
    return captures.sections(done.stdout)


def late(script, section: str) -> str:
    """What the errors of a GPU look like: from a run if there is a GPU, else as it is stored, without line breaks."""
    if torch.cuda.is_available():
        return sections(script, "cuda")[section]
    return re.sub(r"\n {6}(?=\S)", " ", captures.contents("compiler/debugging_late", "cuda")[section])


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


def test_a_kernel_with_too_large_tiles_is_refused_in_the_words_of_the_page():
    page = (ROOT / "docs/pages/compiler/debugging-gpu.md").read_text(encoding="utf-8")
    words = str(OutOfResources(300_000, 232_448, "shared memory"))
    quoted = re.search(r"`OutOfResources`: `(out of resource[^`]*)`", page)
    assert quoted and re.match(re.escape(quoted[1]).replace(r"\.\.\.", r"\d+"), words)


# ---- on a GPU, or what was captured on one --------------------------------------------------------------------------


def test_an_illegal_access_is_raised_at_a_later_line_unless_each_launch_is_waited_for(script):
    found = told(late(script, "late"))
    assert found["illegal"] == [(f"AcceleratorError: {ILLEGAL}", "print(total.item())")]
    ((words, where),) = found["illegal, CUDA_LAUNCH_BLOCKING=1"]
    assert "an illegal memory access was encountered" in words and where == "stray[(1,)](x, at)"


def test_an_index_that_is_too_large_is_an_assertion_on_the_gpu_and_comes_late(script):
    section = late(script, "asserts")
    words = re.findall(r"^each.*\n((?:  .*\n)+)", section, re.MULTILINE)
    assert len(words) == 4 and all(said.count("\n") == 1 for said in words)
    assert all("device-side assert triggered" in said for said in words)
    assert words[0] == words[2] == f"  {ASSERT}\n"
    found = re.findall(r"^(\S+)\n  raised at +(.*)\n  blocking, at +(.*)\n  the GPU wrote +(.*)", section, re.MULTILINE)
    assert {name: where.partition("(")[0] for name, _, where, _ in found} == {
        name: f"return {call}" for name, call in EAGER.items()
    }
    found += re.findall(
        r"^(\S+, compiled)\n  raised at +(.*)\n  blocking, at +(.*)\n  the GPU wrote +(.*)", section, re.MULTILINE
    )
    assert len(found) == 6
    for name, later, blocking, wrote in found:
        assert later == "print(result.sum().item())" and "Assertion `" in wrote
        if "compiled" in name:
            assert re.match(r"triton_\w+\.run\(", blocking) and "index out of bounds: 0 <= tmp" in wrote


def test_the_question_is_in_the_generated_code_and_without_it_there_is_no_error(script):
    asks = r"tl\.device_assert\(.*\"index out of bounds: 0 <= tmp\d+ < 8\"\)"
    assert re.search(asks, late(script, "generated"))
    found = late(script, "unasked")
    assert "Error" not in found and "status 0" in found


def test_after_an_error_the_process_can_use_the_gpu_no_more_and_a_new_one_can(script):
    found = {row[:17].strip(): row[17:] for row in late(script, "dead").splitlines()}
    for what in ("the kernel", "another tensor", "an older tensor", "waiting"):
        assert found[what] == f"AcceleratorError: {ILLEGAL}", what
    assert found["is there a GPU?"] == "works: True" and found["on the CPU"] == "works: 8.0"
    assert found["a new process"] == "works"


def test_too_little_memory_ends_nothing(script):
    section = late(script, "memory")
    ((words, where),) = told(section)["out_of_memory"]
    assert words.startswith("OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB")
    assert "empty_strided_cuda" in where and re.search(r"afterwards +works: 32768.0", section)


def test_compute_sanitizer_sees_a_write_behind_a_tensor_that_is_an_allocation_of_its_own(script):
    section = late(script, "too far")
    if "no compute-sanitizer" in section or "no report" in section:
        pytest.skip("compute-sanitizer does not run here")
    under = dict(re.findall(r"^(index .*)\n((?:  .*\n)+)", section, re.MULTILINE))
    alone = "PYTORCH_NO_CUDA_MEMORY_CACHING=1, compute-sanitizer"
    assert "no error, and no other tensor has changed" in under["index 8"]
    assert "no error, another tensor has changed" in under["index 128"]
    assert "ERROR SUMMARY: 0 errors" in under["index 8, compute-sanitizer"]
    for seen in (f"index 8, {alone}", f"index 128, {alone} --padding 4096"):
        assert "Invalid __global__ write of size 4 bytes" in under[seen] and "at stray" in under[seen]
    assert "ERROR SUMMARY: 0 errors" in under[f"index 128, {alone}"]


def test_in_a_cuda_graph_the_error_is_one_of_the_replay(script):
    section = late(script, "graph")
    found = told(section)
    assert found["replayed"] == [(ASSERT, "print(later.sum().item())")]
    assert found["replayed, CUDA_LAUNCH_BLOCKING=1"] == [(ASSERT, "graph.replay()")]
    first, second = found["waits_while_recording"]
    assert "operation not permitted when stream is capturing" in first[0] and first[1] == "x.sum().item()"
    assert "operation failed due to a previous error during capture" in second[0]
    assert "Assertion `" in section


def test_a_stack_names_the_operation_in_cpp_only_if_each_launch_is_waited_for(script):
    alone, blocking = re.findall(r"Exception raised from (.*)", late(script, "stack"))
    assert "Indexing.cu" in blocking and "Indexing.cu" not in alone


# ---- the page -------------------------------------------------------------------------------------------------------

LISTED = {  # words of the page's table of messages, and the section that provokes them
    "terminate called after throwing an instance of 'std::runtime_error'": "at once",
    "CUDA error: device-side assert triggered": "asserts",
    "CUDA driver error": "asserts",
    "CUDA error: an illegal memory access was encountered": "late",
    "Triton Error [CUDA]": "late",
    "operation not permitted when stream is capturing": "graph",
    "CUDA out of memory. Tried to allocate": "memory",
}


@pytest.mark.parametrize("words", LISTED)
def test_each_message_of_the_table_is_provoked(words):
    page = (ROOT / "docs/pages/compiler/debugging-gpu.md").read_text(encoding="utf-8")
    assert sum(line.startswith("| ") and f"`{words}`" in line for line in page.splitlines()) == 1
    stored = {
        name: text
        for device in ("cuda", "cpu")
        for name, text in captures.contents("compiler/debugging_late", device).items()
    }
    assert words in stored[LISTED[words]]

"""Each error message that the page lists is provoked, in the words of this version."""

import re

import pytest

from snippets.compiler.debugging_errors import ERRORS, provoke
from snippets.compiler.debugging_errors_compiler import failing_backend, failing_lowering
from snippets.compiler.debugging_errors_running import wrong_stride
from tests.benchmarks.source import ROOT
from tests.snippets.compiler.test_debugging_symptoms import OLD, known, sections

PAGE = (ROOT / "docs/pages/compiler/debugging-errors.md").read_text()
WORDS = {  # by function: the type, and what the page tells to search for
    "shapes_that_do_not_fit": ("TorchRuntimeError", "inconsistent tensor size"),
    "data_pointer": ("TorchRuntimeError", "Cannot access data pointer of Tensor"),
    "branch_on_a_value": ("Unsupported", "Data-dependent branching"),
    "too_many_graphs": ("FailOnRecompileLimitHit", "Hard failure due to fullgraph=True"),
    "unknown_backend": ("InvalidBackend", "Invalid backend"),
    "failing_backend": ("BackendCompilerFailed", "ValueError: planted"),
    "no_formula": ("BackendCompilerFailed", "no autograd formula was"),
    "failing_lowering": ("InductorError", "LoweringException"),
    "wrong_stride": ("AssertionError", "expected size 2==2, stride 1==4 at dim=0"),
    "wrong_fake_kernel": ("MetadataMismatchError", "When comparing the output of"),
    "wrong_schema": ("RuntimeError", "is not defined as mutable but was mutated"),
    "index_out_of_bounds": ("RuntimeError", "index out of bounds: 0 <= tmp"),
    "nan": ("AssertionError", "assert not var.isnan().any().item()"),
    "not_deterministic": ("RuntimeError", "does not have a deterministic implementation"),
    "output_changed": ("RuntimeError", "has been modified by an inplace operation"),
    "backward_twice": ("RuntimeError", "Trying to backward through the graph a second time"),
    "double_backward": ("RuntimeError", "does not currently support double backward"),
    "no_compiler": ("InductorError", "No working C++ compiler found"),
    "no_python_headers": ("InductorError", "Python.h: No such file or directory"),
    "no_compiler_on_windows": ("InvalidCxxCompiler", "Compiler: cl is not found."),
    "no_triton": ("TritonMissing", "Cannot find a working triton installation"),
    "gpu_too_old": ("GPUTooOldForTriton", "which is too old to be supported by the triton GPU compiler"),
}
OTHERWISE = {"no_compiler_on_windows": ("RuntimeError", "Compiler: cl is not found.")} if OLD else {}


def test_every_error_is_expected():
    assert list(WORDS) == [function.__name__ for functions in ERRORS.values() for function in functions]


@known
@pytest.mark.parametrize("name", WORDS)
def test_it_is_raised_in_the_words_of_the_page(name, script):
    kind, words = OTHERWISE.get(name, WORDS[name])
    (found,) = [
        text
        for when in ERRORS
        for text in re.findall(rf"^{name}\n  (.*)", sections(script, "errors")[when], re.MULTILINE)
    ]
    assert found.startswith(f"{kind}: ") and words in found


@pytest.mark.parametrize("name", WORDS)
def test_the_table_of_the_page_has_it(name):
    kind, words = WORDS[name]
    words = words.replace("2==2, stride 1==4 at dim=0", "").strip()
    rows = [line for line in PAGE.splitlines() if line.startswith("| `") and words in line]
    assert len(rows) == 1 and kind in rows[0], f"{words!r} in {rows}"


@known
def test_the_message_names_the_operator_or_the_backend():
    assert "Error in op: torch.ops.planted.by_column.default" in str(provoke(wrong_stride))
    assert "target: provoked.lowered.default" in str(provoke(failing_lowering))
    assert str(provoke(failing_backend)).startswith("backend='ours' raised:\nValueError: planted")


def test_what_raises_nothing_is_no_error():
    with pytest.raises(AssertionError, match="no error"):
        provoke(lambda: None)

"""Each variable has the effect that is printed."""

import pytest

from snippets.reference import environment_variables as snippet
from tests.benchmarks import captures


@pytest.fixture(scope="module")
def printed(script) -> dict[str, str]:
    done = script(snippet.__name__)
    assert not done.returncode, done.stderr
    return {section: text.strip() for section, text in captures.sections(done.stdout).items()}


SHOWN = {
    "TORCH_LOGS": "tensor 'x' size mismatch at index 0. expected 2, actual 3",
    "TORCH_LOGS_OUT": "3 lines in the file, 3 on the error output",
    "TORCH_TRACE": "dynamo_output_graph",
    "TORCH_COMPILE_DEBUG": "ir_post_fusion.txt",
    "TORCH_SHOW_CPP_STACKTRACES": "calls of C++ follow",
    "TORCHDYNAMO_REPRO_AFTER": "minifier_launcher.py",
    "TRITON_CACHE_DIR": "double.cubin",
    "TRITON_INTERPRET": "TRITON_INTERPRET=1: tensor([2., 2., 2., 2.])",
    "TRITON_KERNEL_DUMP": "double.ttgir",
    "MLIR_ENABLE_DUMP": "IR Dump Before Inliner",
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_variable_has_its_effect(printed, name):
    assert SHOWN[name] in printed[name]

"""A crash is named by the line that caused it."""

import signal

from tests.snippets.compiler.test_debugging_symptoms import sections


def test_the_last_words_name_the_operator_and_the_call(script):
    lines = sections(script)["crash"].splitlines()
    assert "raised from dot_check at" in lines[0]
    assert lines[1] == "Fatal Python error: Segmentation fault" and lines[2].endswith("in reads_address_0")
    assert lines[-2].endswith("in crash") and lines[-1] == f"status {-signal.SIGSEGV}"

"""What the programs print under a variable differs from what they print without it."""

import re

import pytest

from snippets.reference import environment_variables as snippet
from tests.benchmarks import captures


@pytest.fixture(scope="module")
def printed(script) -> dict[str, str]:
    done = script(snippet.__name__)
    assert not done.returncode, done.stderr
    return {section: text.strip() for section, text in captures.sections(done.stdout).items()}


def test_the_traceback_is_longer_when_verbose(printed):
    usual, verbose = map(int, re.findall(r"(\d+) frames", printed["TORCHDYNAMO_VERBOSE"]))
    assert verbose > usual


def test_triton_compiles_again_when_told(printed):
    lines = printed["TRITON_ALWAYS_COMPILE"].splitlines()
    assert lines[0].endswith("found the first one") and lines[1].endswith("wrote the binary again")

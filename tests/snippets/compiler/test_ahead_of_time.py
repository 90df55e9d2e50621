"""That a package gives the model's results without its source, what it does not check, and what the page says."""

import re

import pytest
import torch

from tests.benchmarks.captures import sections
from tests.snippets.compiler.cpp_library import skip_where_it_is_twice

VARIES = {  # by section, beside measured numbers: see tests/benchmarks/captures.py
    "tried": r"[1-9]\d* programs",  # as many as the compiler needs
    "contents": r"AOTI_\w+: .*",  # this processor
    "exercises": r"paid back after \d+ starts|never paid back",
}

MODULE = "snippets.compiler.ahead_of_time"
WAYS = (
    "eager", "torch.compile, cold", "torch.compile, warm",
    "package, cold", "package, warm", "package, bare", "package, C++",
)  # fmt: skip


def lines(text: str, section: str) -> list[str]:
    return sections(text)[section].splitlines()


@pytest.fixture
def printed(script):
    """What the script prints: it builds two packages and the program in C++, once for all tests."""
    done = script(MODULE)
    if done.returncode:
        skip_where_it_is_twice(script)
    assert done.returncode == 0, done.stderr
    return lambda section: lines(done.stdout, section)


def test_in_python_and_in_cpp_a_package_gives_the_models_results(printed):
    rows = printed("starts")[1:]
    assert [row[:22].strip() for row in rows] == list(WAYS)
    assert all(row.endswith(" yes") for row in rows), rows


def test_the_process_that_serves_cannot_import_the_model(printed):
    assert printed("without source") == ["the process can import: nothing of ours"]


def test_loading_compiles_test_programs_unless_the_check_is_skipped(printed):
    *counted, without = printed("tried")
    tried = {row.split()[0]: int(re.search(r"(\d+) programs", row)[1]) for row in counted}
    assert tried["package"] > 0 == tried["bare"] == tried["server"]
    assert re.match(r"no compiler +agrees: yes ", without)  # and it is loaded without any


def test_a_package_holds_code_and_weights_for_this_machine(printed):
    text = "\n".join(printed("contents"))
    for part in ("*.wrapper.cpp", "*.wrapper.so", "*.wrapper_metadata.json"):
        assert part in text
    assert "compiled for this machine's processor: yes" in text


def test_what_is_not_checked_is_wrong_without_an_error(printed):
    """The batch of one row, to which the export fell back, among it."""
    told = dict(re.split(r" {2,}", row, maxsplit=1) for row in printed("unchecked"))
    assert told["one row"] == "returns 1 row, right"
    assert told["five rows"] == told["every second feature"] == "returns 1 row, wrong and no error"
    assert told["17 features"] == told["float64"] == "returns 1 row, no error; eager refuses"


def test_a_variable_of_the_environment_has_inputs_checked(printed):
    told = dict(re.split(r" {2,}", row, maxsplit=1) for row in printed("checked"))
    assert told.pop("one row") == "returns 1 row, right"
    assert len(told) == 4
    if torch.__version__ >= "2.12":  # 2.11 writes these words to the standard error
        assert all("input_handles[0]: unmatched" in words for words in told.values())
    else:
        assert all("API call failed" in words for words in told.values())


def test_weights_are_loaded_by_name_and_small_ones_are_baked_in(printed):
    told = printed("weights")
    assert told[0] == "needs: linear.bias, linear.weight, temperature"
    assert "the served package has all but scale" in told
    assert any(re.match(r"all of its weights +RuntimeError: Constant not found: scale", row) for row in told)
    assert not told[-1].endswith("status 0")


def test_a_package_is_loaded_by_another_interpreter(printed):
    assert printed("across")[-1] == "agrees: yes"

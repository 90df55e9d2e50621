"""That a package gives the model's results without its source, what it does not check, and what the page says."""

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch._inductor.graph import GraphLowering

from snippets.compiler import ahead_of_time
from snippets.compiler.ahead_of_time import STAGES, Head, alone, reports_no_source, started
from tests.benchmarks.captures import contents, sections
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


def test_the_process_that_serves_cannot_import_the_model(printed, tmp_path):
    assert printed("without source") == ["the process can import: nothing of ours"]
    done = subprocess.run(alone(reports_no_source), cwd=ahead_of_time.ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "nothing of ours\n"  # not even from the repository's root
    command = [sys.executable, "-c", alone(reports_no_source)[3]]
    done = subprocess.run(command, cwd=ahead_of_time.ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "snippets\n"  # and it would say so


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


@pytest.mark.parametrize(("shape", "baked"), [((8,), True), ((9,), False), ((2, 2), False)])
def test_what_is_small(shape, baked):
    assert GraphLowering.can_inline_constant(torch.ones(shape)) == baked


def test_a_package_is_loaded_by_another_interpreter(printed):
    assert printed("across")[-1] == "agrees: yes"


def test_a_head_is_what_the_process_by_itself_takes_for_eager():
    head, x = Head(), torch.randn(5, 16)
    state = head.state_dict()
    expected = torch.nn.functional.linear(x.relu(), state["linear.weight"], state["linear.bias"]) / state["temperature"]
    torch.testing.assert_close(head(x), expected)


# ---- how a start is measured ----------------------------------------------------------------------------------------

CLOCK = """
for stage, seconds in (("torch", 1100), ("load", 1101), ("first call", 1103)):
    print(stage, seconds)
print("later call", 0.01)
"""


def test_a_stage_lasts_from_the_end_of_the_one_before_and_one_that_is_missing_takes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(ahead_of_time, "time", SimpleNamespace(time=lambda: 1000.0))
    stages, later = started([sys.executable, "-c", CLOCK], tmp_path, tmp_path)
    assert list(stages) == list(STAGES)
    assert stages == {"torch": 100.0, "compiler": 0.0, "load": 1.0, "first call": 2.0}
    assert later == 0.01


def test_a_process_that_fails_is_said(tmp_path):
    with pytest.raises(RuntimeError, match="no such thing"):
        started([sys.executable, "-c", "raise SystemExit('no such thing')"], tmp_path, tmp_path)


# ---- what the page says of the stored table, in words ---------------------------------------------------------------


def stored(name: str) -> list[str]:
    return contents("compiler/ahead_of_time", "cpu")[name].splitlines()


def seconds() -> dict[str, dict[str, float]]:
    head = ("torch", "compiler", "load", "first call", "in all", "later")
    rows = {row[:22].strip(): re.findall(r"\d+\.\d+", row[22:]) for row in stored("starts")[1:]}
    return {what: dict(zip(head, map(float, row), strict=True)) for what, row in rows.items()}


def test_who_starts_first():
    took = {what: row["in all"] for what, row in seconds().items()}
    assert took["package, C++"] < took["package, bare"] < took["package, warm"] < took["torch.compile, warm"]
    assert took["package, warm"] < took["package, cold"] < took["torch.compile, cold"]
    assert abs(took["package, bare"] - took["eager"]) < 0.2 * took["eager"]


def test_the_first_call_of_a_package_compiles_nothing():
    rows = seconds()
    assert all(row["first call"] < 0.1 for what, row in rows.items() if what.startswith("package"))
    assert rows["torch.compile, warm"]["first call"] > 1


def test_once_warm_a_package_is_no_slower_than_what_compiles_when_it_starts():
    later = {what: row["later"] for what, row in seconds().items()}
    fast = {what for what in later if what.startswith("package")}
    assert max(later[what] for what in fast) < min(later[what] for what in later if what not in fast)


def test_loading_into_an_empty_folder_takes_most_of_a_cold_start():
    cold = seconds()["package, cold"]
    assert cold["load"] > cold["in all"] / 2

"""How a server starts on a GPU: the script there, and what the page says of the stored table."""

import re

import pytest
import torch

from tests.snippets.compiler.test_ahead_of_time import WAYS, lines, stored

MODULE = "snippets.compiler.ahead_of_time_gpu"
STAGES = ("torch", "compiler", "load", "first call", "in all", "later")


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_without_a_gpu_it_says_so(script):
    assert script(MODULE).stdout == "a start on a GPU needs a GPU\n"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a start on a GPU")
def test_each_way_gives_the_models_results(script):
    done = script(MODULE)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = lines(done.stdout, "starts")[1:]
    assert [row[:22].strip() for row in rows] == list(WAYS) and all(row.endswith(" yes") for row in rows), rows


def seconds() -> dict[str, dict[str, float]]:
    rows = {row[:22].strip(): re.findall(r"\d+\.\d+", row[22:]) for row in stored("starts-gpu")[1:]}
    return {what: dict(zip(STAGES, map(float, row), strict=True)) for what, row in rows.items()}


def test_who_starts_first():
    took = {what: row["in all"] for what, row in seconds().items()}
    assert took["package, C++"] < took["package, bare"] < took["package, warm"] < took["torch.compile, warm"]
    assert took["torch.compile, warm"] < took["torch.compile, cold"]


def test_the_first_call_of_a_package_compiles_nothing():
    rows = seconds()
    assert max(row["first call"] for what, row in rows.items() if what.startswith("package")) < 1
    assert rows["torch.compile, cold"]["first call"] > 1


def test_loading_into_an_empty_folder_takes_most_of_a_cold_start():
    cold = seconds()["package, cold"]
    assert cold["load"] > cold["in all"] / 2


def test_a_package_with_the_cpp_library_in_it_does_not_load_there_either():
    (row,) = stored("linked-gpu")
    assert re.fullmatch(r"-static-libstdc\+\+ +no +(SIG\w+|Error: .*)", row)

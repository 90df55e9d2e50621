"""What a start is made of, that each way to compile is the same function, and what the page says of its tables."""

import math
import re

import pytest
import torch

from snippets.compiler.compile_time import at_depth, break_even
from snippets.compiler.compile_time_start import Start
from tests.benchmarks.captures import contents, sections

MODULE = "snippets.compiler.compile_time"


def taking(first: float, later: float = 0.0) -> Start:
    return Start(stages={"import torch": 1.0, "first step": first}, later=later)


def test_compiling_pays_once_the_steps_have_saved_what_the_start_cost():
    eager, fast = taking(0.0, later=3e-3), taking(10.0, later=1e-3)
    assert break_even(eager, fast) == pytest.approx(5000)
    assert break_even(eager, taking(10.0, later=3e-3)) == math.inf
    assert break_even(taking(20.0, later=3e-3), fast) == 0


def test_a_deeper_model_is_on_the_line_through_the_two_deepest():
    starts = {1: taking(100.0), 4: taking(5.0), 16: taking(11.0)}
    assert at_depth(starts, 64) == pytest.approx(11 + 48 * 0.5)


def rows(text: str, section: str) -> list[str]:
    return sections(text)[section].splitlines()


def test_cold_is_cold_and_warm_is_warm(script):
    done = script(MODULE)
    assert done.returncode == 0, done.stderr
    found = [
        re.match(r"(.*?) +compilations (\d+) +cache hits (\d+) +misses (\d+)", row)
        for row in rows(done.stdout, "graphs")
    ]
    counts = {match[1]: tuple(map(int, match.groups()[1:])) for match in found if match}
    assert set(counts) == {"whole, cold", "nested, cold", "each layer, cold", "whole, warm", "each layer, artifacts"}
    cold = 1 + torch.cuda.is_available()  # there the first call also times launch settings, which counts as one
    for what, count in counts.items():
        assert count == ((cold, 0, 1) if what.endswith("cold") else (1, 1, 0)), what


# What the page says of the tables of the GPU, in words: whoever stores new ones learns here what no longer holds.


def stored(name: str) -> list[str]:
    """The lines of a stored table."""
    script = "compiler/compile_time_workers" if name == "workers" else "compiler/compile_time"
    return contents(script, "cuda")[name].splitlines()


def numbers(name: str, row: str) -> dict[str, list[float]]:
    """The numbers of a stored table's rows, by what `row` matches at the start of a line."""
    found = ((match[0], line[match.end() :]) for line in stored(name) if (match := re.match(row, line)))
    return {
        " ".join(what.split()): [float(number) for number in re.findall(r"\d+(?:\.\d+)?", rest)] for what, rest in found
    }


WAYS = r"eager|(?:whole|nested|each layer), \w+"
DYNAMO, AUTOGRAD, INDUCTOR, KERNELS, CACHE, REST, FIRST = range(7)


def test_a_warm_step_has_no_stage_after_dynamo_and_is_shorter():
    seconds = numbers("seconds", r" *\d+ (?:cold|warm)")
    for layers in (1, 4, 16):
        cold, warm = (seconds[f"{layers} {state}"] for state in ("cold", "warm"))
        assert warm[AUTOGRAD] == warm[INDUCTOR] == warm[KERNELS] == 0 < warm[DYNAMO]
        assert warm[FIRST] < cold[FIRST]


def test_waiting_for_kernels_grows_less_with_depth_than_the_compilers_python():
    growth = numbers("growth", r"[A-Za-z]+(?= +\d)")
    assert growth["kernels"][0] < min(growth[stage][0] for stage in ("Dynamo", "AOTAutograd", "Inductor"))


def test_each_step_of_the_ladder_is_shorter_than_the_one_before():
    in_all = {what: row[-3] for what, row in numbers("starts", WAYS).items()}
    assert in_all["each layer, artifacts"] < in_all["each layer, cold"] < in_all["whole, cold"]
    assert in_all["each layer, artifacts"] < in_all["whole, warm"] < in_all["whole, cold"]
    assert in_all["nested, cold"] < in_all["whole, cold"]
    assert in_all["eager"] == min(in_all.values())


def test_with_a_warm_cache_most_of_a_start_is_not_in_its_steps():
    *before, steps, in_all, _, _ = numbers("starts", WAYS)["whole, warm"]
    assert steps < in_all / 2 and all(stage > 0 for stage in before[:4])


def test_compiling_the_whole_makes_later_steps_shorter():
    later = {what: row[-1] for what, row in numbers("starts", WAYS).items()}
    assert all(later[what] < later["eager"] for what in ("whole, cold", "whole, warm"))


def test_workers_help_once_they_are_there_and_alike_is_compiled_once():
    workers = numbers("workers", r"32 (?:distinct|alike) +(?:1 |as they start|all there)")
    kernels = {what: row[1] for what, row in workers.items()}
    assert kernels["32 distinct all there"] < kernels["32 distinct as they start"]
    assert kernels["32 distinct all there"] < kernels["32 distinct 1"]
    assert workers["32 distinct 1"][-2:] == [0, 32] and workers["32 alike as they start"][-1] == 1

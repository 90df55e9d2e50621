"""What the procedure says of each symptom, and that it says so for the right reason."""

import re
import signal
from collections.abc import Callable

import pytest
import torch
from torch.compiler import set_stance as stance

from snippets.compiler.debugging_symptoms import (
    angle,
    angle_clamped,
    broken,
    first_not_finite,
    gate,
    one_graph,
    parallel,
    step_by_name,
    vitals,
)
from tests.benchmarks import captures
from tests.snippets.compiler.cpp_library import skip_where_it_is_twice

VERSION = ".".join(torch.__version__.split(".")[:2])
KNOWN = {"2.11", "2.12", "2.13", "2.14", "2.15"}  # in others nobody has read the words and stages
OLD = VERSION in ("2.11", "2.12")
known = pytest.mark.skipif(VERSION not in KNOWN, reason=f"the page knows no words of torch {VERSION}")


def sections(script: Callable, part: str = "symptoms") -> dict[str, str]:
    """What one of the page's scripts printed, by section. It runs once for all tests."""
    done = script(f"snippets.compiler.debugging_{part}", "cpu")
    if done.returncode == -signal.SIGSEGV:
        skip_where_it_is_twice(script)
    assert done.returncode == 0, done.stderr[-2000:]
    return captures.sections(done.stdout)


def test_compiled_is_nearer_to_float64_than_eager_and_can_be_made_to_round_as_eager(script):
    rows = {line.split()[0]: line.split() for line in sections(script)["precision"].splitlines()[1:]}
    for dtype in ("float16", "bfloat16"):
        eager, compiled, rounding = map(float, rows[dtype][1:4])
        assert compiled < eager and rows[dtype][4:6] == ["not", "close"]
        if OLD:  # which do not heed the setting here
            assert rounding == compiled
        elif VERSION in KNOWN - {"2.15"}:
            assert rounding == eager and rows[dtype][-2:] == ["eager's", "bits"]
        else:
            assert rounding >= eager
    assert rows["float32"][4] == "close"


def test_the_six_steps_of_the_gate_are_six():
    graph = torch.fx.symbolic_trace(gate).graph
    assert sum(node.op.startswith("call") for node in graph.nodes) == 6


def test_the_minifier_is_left_with_the_planted_operator_and_what_shows_it(script):
    ended, _, graph = sections(script)["minifier"].partition("\n\n")
    assert ended == "AccuracyError: Bad accuracy detected"
    calls = re.findall(r"torch\.ops\.(\S+)\(", graph)
    assert "planted.shifted.default" in calls and len(calls) <= 3


def test_the_angle_is_nan_where_it_is_not_rounded(script):
    found = dict(re.findall(r"^(.+?) +(\d) of 4 are NaN", sections(script)["nan"], re.MULTILINE))
    assert found == {
        "eager, bf16": "0", "compiled, bf16": "3", "eager, fp32": "3",
        "eager, fp64": "0", "compiled, rounding as eager": "0", "clamped, compiled, bf16": "0",
    }  # fmt: skip
    assert "first wrong: inductor" in sections(script)["nan bisected"]


def test_the_first_operation_that_is_not_finite_is_named_with_its_line():
    a, b = (x.float() for x in parallel())
    assert first_not_finite(angle, a, b) == "acos, in the line: return cosine.acos()"
    assert first_not_finite(angle_clamped, a, b) == "all are finite"
    torch.testing.assert_close(angle_clamped(a, b), torch.zeros(4), atol=1e-3, rtol=0)


def test_a_negative_index_is_an_error_in_eager_only(script):
    eager, compiled = sections(script)["index"].splitlines()
    assert eager.endswith("IndexError: index out of range in self") and compiled.endswith("tensor([3.])")


def test_slow_functions_are_told_apart_by_three_counts():
    x = torch.ones(4)
    steps = [(x, i) for i in range(3)]
    assert vitals(one_graph, *steps) == "1 graphs; 1 of 3 batches had to be compiled; 1 graphs a call"
    assert vitals(broken, *steps) == "2 graphs; 1 of 3 batches had to be compiled; 2 graphs a call"
    named = [(x, "x" * i) for i in range(3)]
    assert vitals(step_by_name, *named) == "3 graphs; 3 of 3 batches had to be compiled; 1 graphs a call"


@pytest.mark.parametrize("off", [lambda: torch._dynamo.config.patch(disable=True), lambda: stance("force_eager")])
def test_the_compiler_can_be_switched_off(off):
    """The first is what TORCH_COMPILE_DISABLE=1 sets."""
    with off():
        assert vitals(one_graph, (torch.ones(4), 0)).startswith("0 graphs")
    assert vitals(one_graph, (torch.ones(4), 0)).startswith("1 graphs")


def test_one_seed_gives_the_same_mask_twice_but_not_eagers(script):
    answers = [line.rpartition(": ")[2] for line in sections(script)["random"].splitlines()]
    assert answers == ["the same", "not the same", "the same"]


def test_what_is_kept_and_what_lets_go_of_it(script):
    counts = re.findall(r": (\d+ graphs|its weights are \w+)", sections(script)["growth"])
    assert counts == [
        "1 graphs", "8 graphs", "8 graphs", "8 graphs", "0 graphs", "4 graphs", "0 graphs", "its weights are gone",
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_tolerances_are_those_that_assert_close_applies(dtype, script):
    row = next(line for line in sections(script)["tolerances"].splitlines() if line.startswith(str(dtype)[6:]))
    rtol = float(row.split()[2])
    one = torch.full((1,), 1024.0, dtype=torch.float64)  # beside which atol is nothing
    torch.testing.assert_close((one * (1 + rtol / 2)).to(dtype), one.to(dtype))
    with pytest.raises(AssertionError, match="Tensor-likes are not"):
        torch.testing.assert_close((one * (1 + 4 * rtol)).to(dtype), one.to(dtype))

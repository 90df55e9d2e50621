"""What a cost is the difference of: programs that are alike but for one thing."""

import subprocess
import sys

import pytest
import torch

from snippets.compiler import costs
from snippets.compiler.costs import BREAKS, GUARDED, Configured, add_one, broken, difference, shown, whole

# Of each time its range; and a difference below the noise may be below 0. See tests/benchmarks/captures.py.
VARIES = {"costs": r"\(-?[\d.]+ to -?[\d.]+\)|-?\d[\d.,]* (ns|µs|ms|s)\b"}


def graphs_of(function, *inputs: torch.Tensor) -> int:
    torch.compiler.reset()
    return torch._dynamo.explain(function)(*inputs).graph_count


def test_programs_differ_in_what_their_names_say():
    x = torch.randn(8)
    assert [graphs_of(function, x) for function in (whole, broken)] == [1, BREAKS + 1]
    assert torch.equal(whole(x), broken(x))
    torch.compiler.reset()
    guards = []
    for count in (1, GUARDED + 1):
        explained = torch._dynamo.explain(Configured(count).__call__)(x)
        guards.append(len(explained.out_guards))
    assert guards[1] - guards[0] >= GUARDED
    assert torch.equal(add_one(x), x + 1)


def test_a_difference_is_shared_by_what_causes_it():
    assert difference([3.0, 5.0], [1.0, 1.0], 2) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("sample", "line"),
    [
        ([2e-6, 1e-6, 4e-6], "2.000 µs  (1.000 to 4.000)"),
        ([0.02, 0.03, 0.025], "25.0 ms  (20.0 to 30.0)"),
        ([1.5], "1.500 s   (1.500 to 1.500)"),
    ],
)
def test_a_line_has_the_median_and_the_range(sample: list[float], line: str):
    assert shown("guard", sample).split(None, 1)[1] == line


COUNTS = """
import torch
from torch._dynamo.utils import counters
from snippets.compiler import costs
costs.block = lambda: torch.nn.Linear(256, 256, device=costs.DEVICE)  # alone it takes no compiler for C++
costs.first_call()
print(counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"])
"""


def test_a_start_with_warm_caches_finds_what_the_one_before_compiled(monkeypatch: pytest.MonkeyPatch):
    """Each start under the variables of the script; in place of its seconds it prints what it found in a cache."""
    run = subprocess.run
    monkeypatch.setattr(costs, "STARTS", 1)
    monkeypatch.setattr(costs.subprocess, "run", lambda _, **given: run([sys.executable, "-c", COUNTS], **given))
    (_, cold), (_, warm) = costs.starts()
    assert cold == [0] and warm[0] > 0

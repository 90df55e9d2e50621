"""What a cost is the difference of: programs that are alike but for one thing."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from snippets.compiler import costs
from snippets.compiler.costs import shown

# Of each time its range; and a difference below the noise may be below 0. See tests/benchmarks/captures.py.
VARIES = {"costs": r"\(-?[\d.]+ to -?[\d.]+\)|-?\d[\d.,]* (ns|µs|ms|s)\b"}


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
for _ in range(2):
    torch.compiler.reset()  # as in a new process: only the folders remember
    costs.first_call()
    print(counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"])
"""


def test_a_start_with_warm_caches_finds_what_the_one_before_compiled(monkeypatch: pytest.MonkeyPatch):
    """Both under one set of variables; in place of seconds, one process prints for both what it found in a cache."""
    run, variables, found = subprocess.run, [], []

    def start(_, **given) -> SimpleNamespace:
        variables.append(given["env"])
        found.extend([] if found else run([sys.executable, "-c", COUNTS], **given).stdout.split())
        return SimpleNamespace(stdout=found[len(variables) - 1])

    monkeypatch.setattr(costs, "STARTS", 1)
    monkeypatch.setattr(costs.subprocess, "run", start)
    (_, cold), (_, warm) = costs.starts()
    assert cold == [0] and warm[0] > 0 and variables[0] == variables[1]

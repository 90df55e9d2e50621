"""Each rewrite lets its function be captured whole, in one graph or two for all calls, and its first side does not."""

import re
from functools import cache

import pytest
import torch

from snippets.patterns.compiler_friendly import TEN, rewrite
from snippets.patterns.compiler_friendly_counts import Counts, both, count
from snippets.patterns.compiler_friendly_pair import CALLS, Rewrite, side
from tests.benchmarks.captures import sections
from tests.benchmarks.source import ROOT

BROKEN = {"select", "experts", "until", "drop", "positions"}
FIGURE = ROOT / "docs" / "pages" / "patterns" / "figures" / "compiler-friendly.svg"


@cache
def found(name: str, which: str) -> Counts:
    pair = rewrite(name)
    pair.forget()
    return count(getattr(pair, which))


@pytest.fixture
def printed(script) -> dict[str, str]:
    """What the script prints: it counts all that the page shows."""
    done = script("snippets.patterns.compiler_friendly_counts", "cpu")
    assert done.returncode == 0, done.stderr
    return sections(done.stdout)


@pytest.mark.parametrize("name", TEN)
def test_after_the_rewrite_every_call_runs_a_whole_graph(name):
    after = found(name, "after")
    assert (after.breaks, after.eager) == (0, 0)
    assert after.graphs == after.recompilations + 1 <= 2, "a second graph is the one with a symbol"
    if name != "loop":  # there a graph runs once for each step
        assert after.pieces == [1] * CALLS


@pytest.mark.parametrize("name", TEN)
def test_before_it_there_is_a_break_or_a_graph_for_each_call(name, printed):
    (row,) = re.findall(rf"^{name}, before +(.+)$", printed["counts"], re.MULTILINE)
    graphs, breaks, recompilations, _, _, eager = map(int, row.split())
    assert bool(breaks) == (name in BROKEN)
    if name not in BROKEN:
        assert (graphs, recompilations, eager) == (8, 7, CALLS - 8)


def counted(function, *inputs) -> Counts:
    return count(side(function, inputs))


def test_what_is_counted_is_what_happened():
    x = torch.ones(4)
    whole = counted(torch.sin, (x,), (x,))
    assert (whole.graphs, whole.operations, whole.breaks, whole.eager, whole.pieces) == (1, 1, 0, 0, [1, 1])
    assert whole.guards > 0

    def cut(x):
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    broken = counted(cut, (x,), (x,))
    assert (broken.graphs, broken.breaks, broken.recompilations, broken.pieces) == (2, 1, 0, [2, 2])

    def by_value(x, which):
        return x + len(which)

    again = counted(by_value, *((x, "a" * length) for length in range(10)))
    assert (again.graphs, again.recompilations, again.eager, again.breaks) == (8, 7, 2, 0)
    assert len(again.reasons) == 7 and "which" in again.reasons[0]


def test_a_function_that_is_given_up_runs_no_graph():
    def loop(x):
        for _ in range(2):
            x = x.sin()
            torch._dynamo.graph_break()
        return x

    given_up = counted(loop, (torch.ones(4),))
    assert (given_up.graphs, given_up.guards, given_up.breaks, given_up.eager) == (0, 0, 1, 1)


def test_a_higher_limit_makes_a_graph_for_each_call(printed):
    graphs = dict(re.findall(r"^(\w+) +graphs, limit 64: +(\d+) ", printed["limit"], re.MULTILINE))
    assert graphs == dict.fromkeys((name for name in TEN if name not in BROKEN), str(CALLS))
    with torch._dynamo.config.patch(recompile_limit=64):
        before, after = both("state")
    assert before.eager == 0
    assert (after.graphs, after.guards) == (found("state", "after").graphs, found("state", "after").guards)


def test_the_figure_shows_what_is_counted():
    """Each call of a line: how many graphs were captured in it, and how many ran."""
    lines = re.findall(r'<g data-calls="([\w-]+)".*?>(.+?)</g>', FIGURE.read_text(), flags=re.DOTALL)
    shown = {name: re.findall(r'data-graphs="(\d) of which new (\d)"', drawn) for name, drawn in lines}
    sides = {name: found(name, "before") for name in ("cache", "select", "experts")}
    sides["after"] = found("cache", "after")
    counts = {name: list(zip(side.pieces, side.made, strict=True)) for name, side in sides.items()}
    assert {name: [(int(ran), int(new)) for ran, new in calls] for name, calls in shown.items()} == counts


def test_both_sides_are_counted_from_the_beginning():
    pair: Rewrite = rewrite("select")
    assert count(pair.before) == count(pair.before)

"""What the page says about each step: fewer operations, no wait, one graph, and a check that refuses each fault."""

import re

import pytest
import torch

from snippets.examples import first_optimized_module as page
from snippets.examples.first_optimized_module import graphs, operations, waits
from snippets.examples.first_optimized_module_draft import STEPS, TASKS, make_draft, make_input
from snippets.examples.first_optimized_module_faults import faults
from snippets.examples.first_optimized_module_solutions import Better
from tests.benchmarks.captures import sections
from tests.benchmarks.examples import first_optimized_module as case


@pytest.fixture
def printed(script):
    """What the script prints, by section."""
    done = script("snippets.examples.first_optimized_module")
    assert done.returncode == 0, done.stderr
    return sections(done.stdout)


def test_most_operations_of_the_draft_are_the_loop_and_the_heads():
    draft, x = make_draft(), make_input(4)
    names = operations(draft, x)
    assert waits(names) == 1
    assert 4 * STEPS + TASKS < len(names) < 4 * STEPS + TASKS + 25  # four in a step, one for a head


def test_the_better_design_has_as_few_whatever_the_number_of_steps():
    better = Better(make_draft())
    counts = {len(operations(better, make_input(2)[:, :steps])) for steps in (2, 7, STEPS)}
    assert len(counts) == 1 and counts.pop() < 30
    assert waits(operations(better, make_input(2))) == 0


def test_a_number_that_the_host_reads_is_a_wait():
    assert waits(operations(lambda x: x.sum().item(), torch.ones(3))) == 1
    assert waits(operations(torch.nonzero, torch.tensor([1.0, -1.0]))) == 1
    assert waits(operations(lambda x: x.sum() + 1, torch.ones(3))) == 0


def test_graphs_are_counted_and_breaks_named():
    def breaks(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1

    def compiled(function, **options):
        return torch.compile(function, backend="eager", **options)

    assert graphs(compiled(lambda x: x + 1)) == (2, [])
    assert graphs(compiled(lambda x: x + 1, dynamic=False)) == (4, [])
    found, causes = graphs(compiled(breaks))
    assert found > 2 and causes == ["Data-dependent branching"]
    assert graphs(lambda x: x) == (0, [])
    torch.compiler.reset()


def test_the_table_of_operations_is_what_the_functions_count(printed):
    draft, better, x = make_draft(), Better(make_draft()), make_input(64)
    rows = [row.split()[:3] for row in printed["operations"].splitlines()[1:]]
    counted = {name: operations(model, x) for name, model in {"draft": draft, "better": better}.items()}
    assert rows == [[name, str(len(names)), str(waits(names))] for name, names in counted.items()]


def test_the_better_design_needs_two_graphs_and_fewer_kernels_than_operations(printed):
    rows = printed["graphs"].splitlines()
    assert re.search("^draft +4 graphs .* breaks: Data-dependent branching$", rows[0])
    assert re.search("^better, dynamic=False +4 graphs .* breaks: none$", rows[1])
    assert re.search("^better +2 graphs .* breaks: none$", rows[2])
    written, operations_ = map(int, re.search(r"(\d+) kernels written, of (\d+) operations", rows[3]).groups())
    assert 0 < written < operations_ / 2


def test_the_draft_is_refused_whole_and_by_export(printed):
    whole, exported = printed["refused"].splitlines()
    assert whole.endswith("Unsupported: Data-dependent branching")
    assert "Could not guard on data-dependent expression Eq(u0, 1)" in exported


def test_allclose_passes_what_the_check_refuses(printed):
    rows = {row[:30].strip(): row[30:].split() for row in printed["judged"].splitlines()[1:]}
    assert rows.pop("better") == ["passes", "passes", "passes"]
    assert set(rows) == set(faults(make_draft()))
    assert {verdicts[2] for verdicts in rows.values()} == {"refuses"}
    assert [name for name, verdicts in rows.items() if verdicts[1] == "passes"] == [
        "its first result for ever", "overwrites its input",
    ]  # fmt: skip
    assert rows["input rounded to bf16"] == ["passes", "refuses", "refuses"]


def test_every_step_of_the_page_is_timed():
    timed = {name for point in case.points(torch.device("cuda")) for name in point.variants}
    assert timed == {"first-draft", "compile-draft", "better", "compile", "graph", "package"} == set(case.LABELS)


def test_a_report_is_of_the_model(monkeypatch):
    calls = []
    assert "a step" in page.report(lambda x: calls.append(x) or x + 1, torch.ones(3))
    assert len(calls) == 10 + 2 + 5  # warm, then those of the recorder

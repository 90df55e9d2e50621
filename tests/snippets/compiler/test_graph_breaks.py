"""Breaks are found and counted, wherever they stand, and the log is left as it was."""

import logging
import os
import subprocess
import sys

import pytest
import torch

from snippets.compiler.graph_breaks import (
    LOG,
    cause,
    find,
    in_a_call,
    in_a_line,
    in_a_loop,
    looped,
    model,
)
from tests.benchmarks.source import ROOT


def make_x() -> torch.Tensor:
    return torch.linspace(-1, 2, 32).view(4, 8)


def make_weights() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(8, 8) for _ in range(4))


def test_a_break_in_a_line_makes_two_graphs():
    found = find(in_a_line, make_x())
    assert (found.graphs, len(found.log), found.skipped) == ([1, 2], 1, False)


def test_a_break_in_a_call_breaks_every_caller():
    found = find(in_a_call, make_x())
    assert (found.graphs, len(found.log), found.skipped) == ([1, 1, 1, 2, 1, 1], 3, False)
    assert ["duplicate" in entry.splitlines()[0] for entry in found.log] == [False, True, True]


def test_a_break_in_a_loop_leaves_nothing_compiled():
    found = find(in_a_loop, make_x())
    assert (found.graphs, len(found.log), found.skipped) == ([], 1, True)


def test_explain_counts_less_than_none_where_a_function_was_given_up():
    explained = torch._dynamo.explain(in_a_loop)(make_x())
    assert (explained.graph_count, explained.graph_break_count) == (0, -1)


@pytest.mark.parametrize(("breaks", "graphs"), [(0, [16]), (1, [2, 14]), (4, [2, 4, 4, 4, 2])])
def test_the_model_is_broken_as_often_as_asked(breaks, graphs):
    found = find(model, make_x(), make_weights(), breaks)
    assert (found.graphs, len(found.log)) == (graphs, breaks)


def test_the_loop_leaves_only_the_norm_compiled():
    found = find(looped, make_x(), make_weights())
    assert (found.graphs, found.skipped) == ([1], True)


@pytest.mark.parametrize("breaks", [0, 1, 4])
def test_broken_or_not_the_model_is_the_same(breaks):
    x, weights = make_x(), make_weights()
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager")(x, weights, breaks)
    torch.testing.assert_close(compiled, model(x, weights))
    torch.testing.assert_close(looped(x, weights), model(x, weights))


def test_the_cause_is_the_line_to_search_for():
    causes = [cause(find(function, make_x()).log[0]) for function in (in_a_line, in_a_call, in_a_loop)]
    assert causes == ["Failed to trace builtin operator"] * 3


def test_the_log_is_left_as_it_was():
    before = LOG.level, LOG.propagate, list(LOG.handlers), LOG.isEnabledFor(logging.DEBUG)
    find(in_a_line, make_x())
    assert (LOG.level, LOG.propagate, list(LOG.handlers), LOG.isEnabledFor(logging.DEBUG)) == before


def test_torch_logs_prints_what_is_found_here():
    """The entries are those of TORCH_LOGS=graph_breaks, not words of our own."""
    script = "import torch; from snippets.compiler.graph_breaks import in_a_line as f\n"
    script += "torch.compile(f, backend='eager')(torch.ones(4, 8))"
    logging_on = os.environ | {"TORCH_LOGS": "graph_breaks"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, env=logging_on, check=True
    )
    for line in find(in_a_line, make_x()).log[0].splitlines():
        assert line.strip() in done.stderr


@pytest.mark.parametrize("region", ["before", "around"])
def test_a_part_may_be_kept_whole_while_the_rest_breaks(region):
    def function(x: torch.Tensor) -> torch.Tensor:
        with torch._dynamo.error_on_graph_break(True):
            x = x.sin()
            if region == "around":
                print(end="")
        print(end="")
        return x.cos()

    torch.compiler.reset()
    compiled = torch.compile(function, backend="eager")
    if region == "around":
        with pytest.raises(torch._dynamo.exc.Unsupported):
            compiled(make_x())
    else:
        torch.testing.assert_close(compiled(make_x()), make_x().sin().cos())

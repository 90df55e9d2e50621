"""Capture: breaks, recompilations and masks with their lines, and nothing left behind."""

import pytest
import torch
from torch import nn

from snippets.validation.assistant import analyze
from snippets.validation.assistant.found import find
from snippets.validation.assistant.graphs import Capturing, Recompiled, capture, of_widths, unexpected
from snippets.validation.assistant.lines import Line
from snippets.validation.assistant.subject import other_sizes
from tests.snippets.validation.planted import kernels, readiness
from tests.snippets.validation.planted.seen import evidence, made

pytestmark = pytest.mark.usefixtures("one_core")


def test_what_the_caller_compiled_stays_compiled():
    module, compiled = readiness.MLP(), []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    fast, x = torch.compile(module, backend=backend), torch.randn(4, 64)
    fast(x)
    analyze(module, x)
    fast(x)
    assert len(compiled) == 1


class Special(nn.Module):
    """Takes another way for one size of the batch."""

    def forward(self, x):
        if x.shape[0] == 7:
            return x.sin()
        return x.cos()


def test_the_line_that_makes_a_size_a_constant_is_named():
    subject = made(lambda: (Special(), torch.randn(8, 8)))
    found = capture(subject, other_sizes(subject)).recompiled
    assert [(one.line.text, one.reason) for one in found] == [
        ("if x.shape[0] == 7:", "dimension 0 of x: 8, then 7, then 6; mark_dynamic raises")
    ]


class Graph(nn.Module):
    """Sums over edges; makes a constant of one of its sizes, if any."""

    def __init__(self, of=""):
        super().__init__()
        self.of = of

    def forward(self, x, edges, weight):
        if (self.of == "edges" and edges.shape[1] == 301) or (self.of == "nodes" and x.shape[0] == 51):
            x = x + 1
        return torch.zeros_like(x).index_add(0, edges[1], x[edges[0]] * weight[:, None])


@pytest.mark.parametrize("of", ["edges", "nodes", ""])
def test_numbers_of_edges_and_nodes_are_sizes_of_a_graph(of):
    subject = made(lambda: (Graph(of), torch.randn(50, 8), torch.randint(0, 50, (2, 300)), torch.rand(300)))
    captured = capture(subject, other_sizes(subject))
    assert captured.sizes == 3 and not captured.error
    found = [one.reason for one in captured.recompiled]
    said = {"edges": "dimension 1 of edges", "nodes": "51"}
    assert len(found) == bool(of) and all(said[of] in one for one in found)


class Heads(nn.Module):
    """Scores of each of several choices, whose number is the module's own; or of as many as there are steps."""

    def __init__(self, held):
        super().__init__()
        self.held, self.score = list(range(8)) if held else 8, nn.Linear(8, 24)

    def forward(self, x, ids):
        scores = self.score(x)
        parts = scores.split(3, -1) if isinstance(self.held, list) else [scores] * ids.shape[1]
        return sum(part.gather(-1, one[:, None]) for part, one in zip(parts, ids.unbind(-1), strict=False))


class Cut(Heads):
    def forward(self, x, ids):
        parts = self.score(x).split([3] * 8, -1)
        return sum(part.gather(-1, one[:, None]) for part, one in zip(parts, ids.unbind(-1), strict=False))


@pytest.mark.parametrize(("module", "times"), [(Heads(True), 0), (Cut(False), 0), (Heads(False), 1)])
def test_a_number_that_is_the_modules_own_is_no_size(module, times):
    found = find(*evidence(lambda: (module, torch.randn(16, 8), torch.randint(0, 3, (16, 8)))))
    assert len([one for one in found if one.kind == "recompilation" and one.weight == "finding"]) == times


def sizes(*inputs):
    turns = other_sizes(made(lambda: (nn.Identity(), *inputs)))
    return [[tuple(one.shape) for one in first.inputs] for first, _ in turns]


def test_token_ids_of_a_batch_of_two_are_no_edges():
    ids = torch.zeros(2, 16, dtype=torch.long)
    assert sizes(ids, torch.ones(2, 16, 4))[0] == [(3, 15), (3, 15, 4)]


def test_rows_and_columns_of_edges_and_the_graph_of_each_node_are_sizes():
    row, graph = torch.zeros(30, dtype=torch.long), torch.zeros(9, dtype=torch.long)
    assert sizes(torch.rand(9, 4), row, row, graph)[0] == [(10, 4), (31,), (31,), (10,)]


def test_one_more_graph_for_a_size_that_changes_is_expected():
    line = Line("model.py", 1)
    size = [Recompiled(line, "tensor 'x' size mismatch at index 0. expected 4, actual 9", by_size=True)]
    number = [Recompiled(line, "b == 64")]  # behind a graph break a size is a number, and becomes dynamic as well
    for one in (size, number):
        assert unexpected(one, changed=True) == [] and unexpected(one, changed=False) == one
    step = [Recompiled(line, "self.step == 3")]
    assert unexpected(step, changed=True) == step


class Layer(nn.Module):
    """A layer with a number of its own, behind a graph break."""

    def __init__(self, power):
        super().__init__()
        self.power, self.f = power, nn.Linear(8, 8)

    def forward(self, x):
        x = self.f(x)
        torch._dynamo.graph_break()
        return x**self.power


class Counts(Layer):
    def forward(self, x):
        self.power += 1
        return super().forward(x)


def test_layers_that_differ_in_a_number_are_no_recompilation_and_one_that_changes_its_number_is():
    for last, reasons in ((Layer(3), []), (Counts(3), ["self.power == 4"])):
        subject = made(lambda last=last: (nn.Sequential(Layer(1), Layer(2), last), torch.randn(4, 8)))
        captured = capture(subject, other_sizes(subject))
        assert {one.reason for one in captured.recompiled if "size" not in one.reason} == set(reasons)
        assert captured.repeats == bool(reasons)


class LoopsBehind(nn.Module):
    """Loops over the batch behind a graph break."""

    def forward(self, x):
        y = x.sin()
        torch._dynamo.graph_break()
        rows = []
        for i in range(len(y)):
            rows.append(y[i].cos())
        return torch.stack(rows)


def test_behind_a_break_the_line_that_loops_over_the_size_is_named():
    subject = made(lambda: (LoopsBehind(), torch.randn(8, 8)))
    assert {one.line.text for one in capture(subject, other_sizes(subject)).recompiled} == {"for i in range(len(y)):"}


class Quantized(nn.Module):
    def forward(self, x):
        return torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255)


class QuantizedLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), Quantized(), nn.Linear(8, 8), Quantized())

    def forward(self, x):
        return self.layers(x).sum(-1) + x.mean(-1)


def test_with_a_graph_break_nothing_is_said_of_a_mark_that_would_help():
    subject = made(lambda: (QuantizedLayers(), torch.randn(8, 8)))
    captured = capture(subject, other_sizes(subject))
    assert captured.breaks and not any(one.marked for one in captured.recompiled)


class Breaks(nn.Module):
    def forward(self, x):
        torch._dynamo.graph_break()
        return x.sin()


def test_a_break_that_comes_with_other_sizes_only_is_told_from_one_that_is_always_there():
    torch._dynamo.reset()  # forgets sizes that another test has seen vary
    for module, by_size in ((Quantized(), True), (Breaks(), False)):
        subject = made(lambda module=module: (module, torch.randn(4, 8)))
        assert [one.by_size for one in capture(subject, other_sizes(subject)).breaks] == [by_size]


def test_masks_of_the_captured_graph_are_looked_at():
    kinds = {}
    for module in (kernels.MaskAsData(), kernels.WindowedAttention()):
        captured = capture(made(lambda module=module: (module, kernels.sequence())))
        kinds[type(module).__name__] = {mask.kind for mask in captured.masks}
    assert kinds == {"MaskAsData": {"causal"}, "WindowedAttention": {"data"}}


def test_a_clean_module_is_captured_twice_however_many_sizes_and_layers_it_has(monkeypatch):
    """Capture is nearly all of a report's time: once as it is, once for any size."""
    kept = []

    def keep(self, graph, inputs):
        kept.append(graph)
        return graph.forward

    monkeypatch.setattr(Capturing, "keep", keep)
    torch._dynamo.reset()  # forgets sizes that another test has seen vary
    report = analyze(nn.Sequential(*(nn.Linear(8, 8) for _ in range(6))), torch.randn(4, 6, 8))
    assert len(kept) == 2 and report.facts.sizes == 3 and report.facts.runs == 4
    kept.clear()
    report = analyze(nn.Sequential(nn.Flatten(0), nn.Linear(32, 8)), torch.randn(4, 8))
    assert len(kept) == 1 and report.facts.sizes == 1


@pytest.mark.parametrize(
    ("sizes", "told"),
    [("expected 512, actual 128", True), ("expected 16, actual 15", False), ("expected 128, actual 127", False)],
)
def test_layers_of_several_widths_are_told_from_sizes_of_inputs(sizes, told):
    reason = f"tensor 'y' size mismatch at index 2. {sizes}"
    found = of_widths(Recompiled(Line("f.py", 1), reason), nn.Sequential(nn.Linear(128, 512), nn.Linear(512, 127)))
    assert found.reason == ("layers of sizes 512 and 128 share the function" if told else reason)

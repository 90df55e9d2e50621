"""How often a program looks at its loss, and how often one compiles."""

import functools
import itertools

import pytest
import torch

from snippets.validation import diagnosis_host
from snippets.validation.diagnosis_host import logged, one_graph_each, one_graph_for_all

CPU = torch.device("cpu")


def test_a_loss_is_looked_at_each_step_or_seldom(monkeypatch):
    seen = []
    monkeypatch.setattr(diagnosis_host, "print_to_nowhere", seen.append)
    monkeypatch.setattr(diagnosis_host, "optimizer_like", lambda small: small)
    monkeypatch.setattr(diagnosis_host, "inputs", lambda device, dtype: (torch.ones(2, 2), [torch.eye(2)]))
    for every, looks in ((1, 6), (3, 2)):
        step = logged(CPU, every)
        for _ in range(6):
            step()
        assert seen == [1.0] * looks
        seen.clear()


@pytest.mark.parametrize(("program", "graphs"), [(one_graph_each, 5), (one_graph_for_all, 1)])
def test_how_often_it_compiles(monkeypatch, program, graphs):
    compiled = itertools.count()
    monkeypatch.setattr(
        torch, "compile", functools.partial(torch.compile, backend=lambda graph, _: (next(compiled), graph.forward)[1])
    )
    torch.compiler.reset()
    step = program(CPU)
    for _ in range(5):
        step()
    assert next(compiled) == graphs

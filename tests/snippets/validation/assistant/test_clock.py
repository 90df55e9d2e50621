"""The timer: a copy that is kept equal, and things timed in turns."""

import ast
from types import SimpleNamespace

import pytest
import torch

from snippets.validation import equivalence, timing
from snippets.validation.assistant import clock, float64


def definitions(module) -> dict[str, str]:
    """What a module defines, as code without comments."""
    with open(module.__file__, encoding="utf-8") as file:
        nodes = ast.parse(file.read()).body
    return {node.name: ast.unparse(node) for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}


OWN = {"measure", "synchronize"}  # here the one has one mode, and the other waits for any accelerator


@pytest.mark.parametrize(("copy", "original", "least"), [(clock, timing, 5), (float64, equivalence, 7)])
def test_what_the_folder_copies_from_the_site_is_equal(copy, original, least):
    here, there = definitions(copy), definitions(original)
    both = (here.keys() & there.keys()) - OWN
    assert len(both) >= least
    assert not [name for name in sorted(both) if here[name] != there[name]]


@pytest.mark.parametrize(("device", "waits"), [("cpu", False), ("cuda", True), ("mps", True)])
def test_it_waits_for_whatever_is_no_cpu(monkeypatch, device: str, waits: bool):
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    clock.seconds_of(lambda: None, torch.device(device), 1)
    assert waited == [torch.device(device)] * 2 * waits  # before the calls and after them


def test_calls_take_turns_and_the_first_of_a_round_changes():
    order: list[str] = []
    samples = {name: (lambda name=name: order.append(name) or 1.0) for name in "ab"}
    assert clock.in_turns(samples, 3, patience=60.0)["a"].samples == 3
    assert order == ["a", "b", "b", "a", "a", "b"]


def test_no_round_begins_when_patience_is_at_its_end(monkeypatch):
    now = iter(range(1000))
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: float(next(now))))
    assert clock.in_turns({"a": lambda: 1.0}, 30, patience=0.5)["a"].samples == 5


def test_a_call_is_warm_before_it_is_timed(monkeypatch):
    calls: list[int] = []
    monkeypatch.setattr(clock, "seconds_per_call", lambda call, device: float(len(calls)))
    assert clock.measure({"a": lambda: calls.append(1)}, torch.device("cpu"), rounds=5)["a"].p50 == 3.0

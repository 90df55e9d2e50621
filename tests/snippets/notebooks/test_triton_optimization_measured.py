"""What is written down of an experiment and of the machine."""

import torch

from snippets.notebooks.triton_optimization_measured import environment, measured
from snippets.validation.equivalence import Agreement
from snippets.validation.timing import Timing


def test_what_is_not_timed_is_said(experiment):
    found = experiment(ours=("written out, compiled",))
    told = [measured(found, mode, {}, {})["not_timed"] for mode in ("calls", "device")]
    assert told == [["written out, compiled"], []]


def test_times_and_errors_are_by_variant(experiment):
    told = measured(experiment(), "calls", {"plain": Agreement(1e-7, 2e-7)}, {"plain": Timing.of([1e-3])})
    assert told["errors"] == {"plain": {"error": 1e-7, "bound": 2e-7}}
    assert told["seconds"]["plain"]["p50"] == 1e-3
    assert told["inputs"] == {"x": {"shape": [64, 64], "dtype": "float32"}}


def test_of_the_environment_only_what_changes_results_is_told(monkeypatch):
    monkeypatch.setenv("TORCH_LOGS", "recompiles")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/somewhere")
    told = environment(torch.device("cpu"))["variables"]
    assert told["TORCH_LOGS"] == "recompiles" and "TORCHINDUCTOR_CACHE_DIR" not in told

"""The loop trains, warms up past what the workers have ready, and is diagnosed."""

import itertools
import json

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from snippets.validation import diagnosis_loop
from snippets.validation.diagnosis_loop import forever, look, small

CPU = torch.device("cpu")


def test_batches_go_on_after_the_loader_is_through():
    loader = DataLoader(TensorDataset(torch.arange(4.0)), batch_size=2)
    assert [batch[0].tolist() for batch in itertools.islice(forever(loader), 3)] == [[0, 1], [2, 3], [0, 1]]


def test_the_step_is_diagnosed_and_trains(tmp_path):
    model, loader = small()
    before = [p.detach().clone() for p in model.parameters()]
    report = look(model, loader, CPU, tmp_path / "trace.json")
    assert "no GPU in this trace" in report and report.splitlines()[-2].startswith("mostly ")
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    names = {event.get("name") for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    assert {"aten::addmm", "autograd::engine::evaluate_function: AddmmBackward0"} <= names


@pytest.mark.parametrize(("workers", "ahead"), [(0, 0), (3, 12)])
def test_the_steps_before_use_up_what_is_ready(monkeypatch, workers, ahead, tmp_path):
    class Loader(list):
        num_workers, prefetch_factor = workers, 4 if workers else None

    taken = []
    monkeypatch.setattr(diagnosis_loop, "record", lambda step, path: taken.append(seen) or path)
    monkeypatch.setattr(diagnosis_loop, "read", str)
    monkeypatch.setattr(diagnosis_loop, "diagnose", str)
    seen = 0

    class Counted(nn.Linear):
        def forward(self, x):
            nonlocal seen
            seen += 1
            return super().forward(x)

    look(Counted(4, 2), Loader([(torch.randn(3, 4), torch.tensor([0, 1, 0]))]), CPU, tmp_path)
    assert taken == [10 + ahead]

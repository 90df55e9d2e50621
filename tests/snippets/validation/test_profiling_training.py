"""The forms of a step train alike."""

import pytest
import torch

from snippets.validation.profiling_training import ON_GPU, Training, compiled

pytestmark = pytest.mark.usefixtures("one_core")


def test_a_step_trains_and_each_form_alike():
    found = []
    for kwargs in ({}, {"compiled": compiled}, {"look": True}):
        torch.manual_seed(0)
        step = Training(16, 4, **kwargs)
        before = step.loss_of(step.x).item()
        for _ in range(20):
            step()
        found.append(step.loss_of(step.x).item())
        assert found[-1] < before
        assert (step.seen > 0) == step.look
    assert found[1:] == pytest.approx(found[:1] * 2, rel=0.05 if ON_GPU else 1e-3)  # bf16 there

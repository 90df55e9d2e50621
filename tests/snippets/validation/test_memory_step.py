"""An optimizer that steps early does what one at the end of the step does."""

import copy

import pytest
import torch

from snippets.validation.memory_step import Early, adam, loss_in_fp32, train_step

pytestmark = pytest.mark.usefixtures("one_core")


def test_stepping_early_updates_as_a_step_at_the_end(small_model):
    model, batch = small_model
    late, early = copy.deepcopy(model), copy.deepcopy(model)
    optimizers = adam(late.parameters()), Early(early)
    for m, optimizer in zip((late, early), optimizers, strict=True):
        train_step(m, optimizer, *batch, loss_in_fp32)
        assert all(p.grad is None for p in m.parameters())
    torch.testing.assert_close(list(late.parameters()), list(early.parameters()))
